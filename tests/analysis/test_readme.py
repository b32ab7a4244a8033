"""README and docs: generated parts are current, links lead somewhere, the README stays short."""

import re
from functools import cache

from tests.processes import ROOT
from tools.readme import generate_pages

PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "launch/README.md"]
for folder in ("docs", "results", "extensions"):
    PAGES += ROOT.glob(f"{folder}/**/*.md")
THERE = "|".join(path.name for path in ROOT.glob("extensions/*"))
# lines that link to an extension whose folder is deleted
TO_DELETED = re.compile(rf".*\]\([./]*extensions/(?!(?:{THERE})\b)\w.*\n")
LINK = re.compile(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)")


def test_generated_parts_are_current():
    stale = [
        path
        for path, text in generate_pages().items()
        if TO_DELETED.sub("", path.read_text()) != text
    ]
    assert not stale, "run `make readme`"


@cache
def anchors(page) -> set[str]:
    """A page's headings, as GitHub makes links of them."""
    headings = re.findall(r"^#+ (.*)", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_from_the_readme_to_every_document():
    found, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page.suffix != ".md" or page in found:
            continue
        found.add(page)
        for path, anchor in LINK.findall(TO_DELETED.sub("", page.read_text())):
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), (page, path)
            assert not anchor or anchor in anchors(target), (page, anchor)
            left.append(target)
    assert {*PAGES} <= found


def test_troubleshooting_quotes_what_is_said():
    """Messages in bold code are the project's own; `…` stands for a name or number."""
    sources = [*ROOT.glob("[aelm]*/**/*.py"), *ROOT.glob("launch/*.sh")]
    said = "\n".join(path.read_text() for path in sources)
    said = re.sub(r'"\s*\n\s*f?"', "", said)  # a sentence goes on in the next line
    page = " ".join((ROOT / "docs/troubleshooting.md").read_text().split())
    quotes = re.findall(r"\*\*`([^`]*)`", page)
    missing = [part for quote in quotes for part in quote.split(" … ") if part not in said]
    assert quotes and not missing
