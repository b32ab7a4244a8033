"""What this project can do beyond its core: a folder each, which can be deleted.

A recipe enters an extension by a section of its name. Its package has the dataclass `Section` of
that section, and functions that take the place of the core's (`Recipe.find_hook`). The manual, with
the smallest one, is docs/extensions.md.
"""
