"""The report as one self-contained HTML page: matrix and answer first, then what they rest on,
runs, figures."""

from collections.abc import Iterable, Iterator
from html import escape

from matplotlib.figure import Figure

from analysis import plots
from analysis import sweep as sweeps
from analysis.answer import QUESTION, answer, details
from analysis.comparison import Comparison
from analysis.plots.sweep import RATIO
from analysis.sweep import Sweep, values
from analysis.table import COLUMNS, by_recipe, cells, matrix, notes, rows_of, seed, trained

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 1250px;
       margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; margin: .5rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
.answer { border-left: 4px solid #0072b2; padding-left: .8rem; } .answer p { margin: .4rem 0; }
.answer p:first-child { font-size: 1.15rem; }
.scroll { overflow-x: auto; }
.hint { display: none; } @media (max-width: 900px) { .hint { display: block; } }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .45rem; text-align: right; white-space: nowrap; border-bottom: 1px solid
#ddd; } th:first-child, tr:not(.runs) > td:first-child { position: sticky; left: 0; background:
#fff; } th { vertical-align: bottom; white-space: pre; } th:first-child, td:first-child {
text-align: left; } tr.runs > td { padding: 0 0 .5rem 1rem; } summary { cursor: pointer; color:
#444; } .figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px),
1fr)); gap: 1.5rem 1rem; } figure { margin: 0; } figure svg { width: 100%; height: auto; }
figcaption { font-size: .85rem; color: #444; } small, .hint, .notes { font-size: .85rem; color:
#444; }
"""


def figures(comparison: Comparison) -> dict[str, Figure]:
    """Caption to figure, in the order in which they answer: loss, speed, wall time, cost."""
    runs, windows, baseline = comparison.frames.runs, comparison.frames.windows, comparison.baseline
    return {
        "Loss by step, smoothed over a tenth of the steps.": plots.loss(runs, windows),
        f"Loss minus the loss of {baseline}, at the same step and seed. In the grey band two losses count as the "
        "same.": plots.loss_difference(comparison.differences, comparison.margin, baseline),
        "Tokens per second, padding included.": plots.tokens_per_s(
            runs, comparison.rates, comparison.published
        ),
        "Model FLOPs utilisation, by what it is divided by.": plots.mfu(runs),
        "How long a steady step takes.": plots.step_time(runs, comparison.steps),
        "Wall time without warm-up, as the published study shows it.": plots.wall_after_warm_up(
            runs, windows
        ),
        f"How far ahead of {comparison.opponent} a recipe is in wall time, warm-up included.": plots.lead(
            comparison
        ),
        "Where the warm-up goes.": plots.warm_up(runs),
        "Peak memory.": plots.memory(runs),
    }


def page(comparison: Comparison) -> str:
    """The whole page; nothing in it is fetched from elsewhere."""
    rows, problems = rows_of(comparison), comparison.frames.problems
    columns, lines = matrix(comparison)
    parts = [
        f'<p class="notes">{escape(trained(rows))}</p>',
        _scroll(_table(columns, map(_row, lines))),
        '<div class="answer">'
        + "".join(f"<p>{escape(sentence)}</p>" for sentence in answer(comparison))
        + "</div>",
        "<h2>What this rests on</h2>",
        _list(details(comparison)),
        "<h2>Runs</h2>",
        _scroll(_table(["recipe", *COLUMNS], _recipes(rows))),
        f'<div class="notes">{_list(notes(rows))}</div>',
        f"<h2>Notes on the runs</h2>{_list(problems)}" if problems else "",
        "<h2>Figures</h2>",
        '<div class="figures">',
        *(_figure(caption, figure) for caption, figure in figures(comparison).items()),
        "</div>",
    ]
    return _document(QUESTION, parts)


def sweep_page(sweep: Sweep) -> str:
    """A sweep's page: its table, and a heat map of each quantity for each recipe."""
    columns, lines = sweeps.matrix(sweep)
    drawn = [
        (recipe, quantity)
        for quantity in sorted(values(sweep.rows[0]), key=lambda quantity: quantity != RATIO)
        for recipe in dict.fromkeys(row.recipe for row in sweep.rows)
        if any(values(row)[quantity] is not None for row in sweep.rows if row.recipe == recipe)
    ]
    return _document(sweeps.QUESTION, [
        _scroll(_table(columns, map(_row, lines))),
        f'<div class="notes">{_list(sweep.notes)}</div>',
        '<div class="figures">',
        *(_figure(f"{recipe}: {quantity}.", plots.heat_map(sweep, quantity, recipe)) for recipe, quantity in drawn),
        "</div>",
    ])  # fmt: skip


def _document(question: str, parts: list[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><title>{question}</title>'
        f"<style>{STYLE}</style></head><body>\n<h1>{question}</h1>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _list(sentences: list[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "</ul>"


def _scroll(table: str) -> str:
    """A table that scrolls sideways where the screen is too narrow, and says so there."""
    return f'<p class="hint">The table goes on to the right: scroll it sideways.</p><div class="scroll">{table}</div>'


def _table(columns: list[str], rows: Iterable[str]) -> str:
    return f"<table>{_row(columns, 'th')}{''.join(rows)}</table>"


def _row(cells: list[str], kind: str = "td") -> str:
    return "<tr>" + "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in cells) + "</tr>"


def _recipes(rows: list[dict]) -> Iterator[str]:
    """A row of means for each recipe and, to fold out under it, a table of its runs."""
    for mean, runs in by_recipe(rows):
        table = _table(["seed", *COLUMNS], (_row([seed(row), *cells(row)]) for row in runs))
        name = f"{len(runs)} run{'s' if len(runs) > 1 else ''} of {escape(mean['recipe'])}"
        yield _row([mean["recipe"], *cells(mean)])
        yield f'<tr class="runs"><td colspan="{len(COLUMNS) + 1}"><details><summary>{name}</summary>{table}</details>'


def _figure(caption: str, figure: Figure) -> str:
    svg = plots.to_svg(figure)
    return f"<figure>{svg[svg.index('<svg') :]}<figcaption>{escape(caption)}</figcaption></figure>"
