"""The report as one self-contained HTML page, from the templates in analysis/templates/."""

from pathlib import Path

import jinja2

from analysis import plots
from analysis.answer import QUESTION, answer, details, left_out, trained
from analysis.comparison import Comparison
from analysis.table import notes, recipe_table, run_table

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
    loader=jinja2.FileSystemLoader([HERE / "templates", HERE.parent / "extensions"]),
    autoescape=jinja2.select_autoescape(["html.j2"]),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
)
_TEMPLATES.globals.update(
    svg=plots.to_svg,
    answer=answer,
    details=details,
    left_out=left_out,
    recipe_table=recipe_table,
    run_table=run_table,
    trained=trained,
    notes=notes,
)


def render(template: str, **facts) -> str:
    """Fill a template of analysis/templates/ in, or one of an extension, as NAME/FILE."""
    return _TEMPLATES.get_template(template).render(facts)


def page(comparison: Comparison) -> str:
    """Write the page of a comparison; nothing in it is fetched from elsewhere."""
    figures = [draw(comparison) for draw in FIGURES]
    return render(
        "report.html.j2",
        question=QUESTION,
        sentences=answer(comparison),
        comparison=comparison,
        figures=figures,
    )
