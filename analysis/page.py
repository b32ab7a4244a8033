"""The report as one self-contained HTML page, from the templates in analysis/templates/."""

from pathlib import Path

import jinja2
from matplotlib.figure import Figure

from analysis import plots, sweep
from analysis.answer import QUESTION, answer, details
from analysis.comparison import Comparison
from analysis.plots.studies import RATIO
from analysis.table import COLUMNS, by_recipe, cells, matrix, notes, rows_of, seed, trained

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=jinja2.select_autoescape(["html.j2"]),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
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
        trained=trained(rows),
        matrix=matrix(comparison),
        answer=answer(comparison),
        details=details(comparison),
        columns=list(COLUMNS),
        recipes=list(by_recipe(rows)),
        cells=cells,
        seed=seed,
        notes=notes(rows),
        problems=comparison.frames.problems,
        figures=_as_svg(figures(comparison)),
    )


def sweep_page(measured: sweep.Sweep) -> str:
    """Write the page of a sweep; speeds over bf16 are the first of its heat maps."""
    quantities = list(sweep.values(measured.rows[0]))
    quantities.sort(key=lambda quantity: quantity != RATIO)
    maps = {}
    for quantity in quantities:
        known = [row.recipe for row in measured.rows if sweep.values(row)[quantity] is not None]
        for recipe in dict.fromkeys(known):
            maps[f"{recipe}: {quantity}."] = plots.heat_map(measured, quantity, recipe)
    return render(
        "sweep.html.j2",
        question=sweep.QUESTION,
        matrix=sweep.matrix(measured),
        notes=measured.notes,
        figures=_as_svg(maps),
    )


def figures(comparison: Comparison) -> dict[str, Figure]:
    """Draw the figures by caption, in the order in which they answer: loss, speed, time, cost."""
    runs, windows, baseline = comparison.frames.runs, comparison.frames.windows, comparison.baseline
    differences = plots.loss_difference(comparison.differences, comparison.margin, baseline)
    speed = plots.tokens_per_s(comparison.rates, comparison.published)
    return {
        "Loss by step, smoothed over a tenth of the steps.": plots.loss(runs, windows),
        f"Loss minus the loss of {baseline}, at the same step and seed. In the grey band two "
        "losses count as the same.": differences,
        "Tokens per second, padding included.": speed,
        "Model FLOPs utilisation, by what it is divided by.": plots.mfu(runs),
        "How long a steady step takes.": plots.step_time(runs, comparison.steps),
        "Wall time without warm-up, as the published study shows it.": plots.wall_after_warm_up(
            runs, windows
        ),
        f"How far ahead of {comparison.opponent} a recipe is in wall time, warm-up included.": (
            plots.lead(comparison)
        ),
        "Where the warm-up goes.": plots.warm_up(runs),
        "Peak memory.": plots.memory(runs),
    }


def _as_svg(drawn: dict[str, Figure]) -> dict[str, str]:
    """Turn figures into SVG elements, without the XML declaration."""
    texts = {caption: plots.to_svg(figure) for caption, figure in drawn.items()}
    return {caption: text[text.index("<svg") :] for caption, text in texts.items()}
