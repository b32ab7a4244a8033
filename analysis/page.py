"""The report as one self-contained HTML page, from the templates in analysis/templates/."""

from pathlib import Path

import jinja2

from analysis import plots, sweep
from analysis.answer import QUESTION, answer, details
from analysis.comparison import Comparison
from analysis.plots.studies import FINDINGS
from analysis.table import matrix, mean_table, notes, rows_of, run_table, trained

# In the order in which they answer.
FIGURES = (
    plots.lead,
    plots.tokens_per_s,
    plots.loss_difference,
    plots.loss,
    plots.warm_up,
    plots.memory,
)
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=jinja2.select_autoescape(["html.j2"]),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
)
_TEMPLATES.globals.update(
    svg=plots.to_svg, details=details, trained=trained, matrix=matrix, notes=notes
)


def render(template: str, **facts) -> str:
    """Fill a template of analysis/templates/ in."""
    return _TEMPLATES.get_template(template).render(facts)


def page(comparison: Comparison) -> str:
    """Write the page of a comparison; nothing in it is fetched from elsewhere."""
    rows = rows_of(comparison)
    return render(
        "report.html.j2",
        question=QUESTION,
        answer=answer(comparison),
        comparison=comparison,
        means=mean_table(rows),
        runs=run_table(rows),
        figures=[draw(comparison) for draw in FIGURES],
    )


def sweep_page(measured: sweep.Sweep) -> str:
    """Write the page of a sweep, with two heat maps of each recipe in FP8."""
    maps = []
    for recipe in measured.outcomes:
        maps += [plots.heat_map(measured, quantity, recipe) for quantity in FINDINGS]
    return render(
        "sweep.html.j2",
        question=sweep.QUESTION,
        answer=[sweep.answer(measured)],
        table=sweep.matrix(measured),
        sentences=measured.notes,
        figures=maps,
    )
