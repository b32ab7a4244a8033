"""Write the report as one self-contained HTML page, from the templates in analysis/templates/."""

from pathlib import Path

import jinja2

from analysis import answer, plots, table
from analysis.comparison import Comparison

# In the order in which they answer.
FIGURES = (
    plots.lead,
    plots.tokens_per_second,
    plots.loss_difference,
    plots.loss,
    plots.first_step,
    plots.memory,
)
HERE = Path(__file__).parent
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader([HERE / "templates", HERE.parent]),
    autoescape=jinja2.select_autoescape(["html.j2"]),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
)
_TEMPLATES.globals.update(svg=plots.to_svg, words=answer, tables=table)


def render(template: str, **facts) -> str:
    """Fill in a template of analysis/templates/, or another one by its path from the project."""
    return _TEMPLATES.get_template(template).render(facts)


def page(comparison: Comparison) -> str:
    """Write the page of a comparison; nothing in it is fetched from elsewhere."""
    figures = [draw(comparison) for draw in FIGURES]
    return render("report.html.j2", comparison=comparison, figures=figures)
