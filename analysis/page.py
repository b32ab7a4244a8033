"""The report as one self-contained HTML page: the answer first, then the table and the figures."""

from html import escape

import pandas as pd
from matplotlib.figure import Figure

from analysis import plots
from analysis.comparison import Comparison, answer
from analysis.report import COST, SPEED, cells, notes, rows_of, status

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 1250px;
       margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; margin: .5rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
.answer { font-size: 1.15rem; border-left: 4px solid #0072b2; padding-left: .8rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .45rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #ddd; }
th { vertical-align: bottom; white-space: pre; } th:first-child, td:first-child { text-align: left; position: sticky;
                                                                left: 0; background: #fff; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: 1.5rem 1rem; }
figure { margin: 0; } figure svg { width: 100%; height: auto; } figcaption { font-size: .85rem; color: #444; }
small, .notes { font-size: .85rem; color: #444; }
"""


def figures(comparison: Comparison) -> dict[str, Figure]:
    """Caption to figure, in the order in which they answer: loss, speed, wall time, cost."""
    frames, baseline = comparison.frames, comparison.baseline
    runs, windows = frames.runs, frames.windows
    margins = [v.margin for v in comparison.verdicts.values() if not pd.isna(v.margin)]
    return {
        "Loss by step: raw light, smoothed strong.": plots.loss(runs, windows),
        f"Loss less that of {baseline}, paired by step and seed, with the margin of equality.": plots.loss_difference(
            comparison.differences, margins[0] if margins else None, baseline
        ),
        "Tokens per second, padding included.": plots.tokens_per_s(runs, windows, comparison.published),
        "Model FLOPs utilisation, by what it is divided by.": plots.mfu(runs),
        "How long a steady step takes.": plots.step_time(runs, comparison.steps),
        "Wall time without warm-up: the published view.": plots.wall_after_warm_up(runs, windows),
        "Wall time with warm-up, and where it breaks even.": plots.wall_with_warm_up(
            runs, windows, comparison.break_evens
        ),
        "Where the warm-up goes.": plots.warm_up(runs),
        "Peak memory.": plots.memory(runs),
    }


def page(comparison: Comparison) -> str:
    """The whole page; nothing in it is fetched from elsewhere."""
    first, *facts = answer(comparison)
    rows = rows_of(comparison)
    problems = comparison.frames.problems
    parts = [
        "<h1>Should this Llama be trained in FP8?</h1>",
        f'<p class="answer">{escape(first)}</p>',
        _list(facts),
        "<h2>Runs</h2>",
        _table(rows, comparison.baseline),
        f'<div class="notes">{_list(notes(rows))}</div>',
        f"<h2>Notes on the runs</h2>{_list(problems)}" if problems else "",
        "<h2>Figures</h2>",
        '<div class="figures">',
        *(_figure(caption, figure) for caption, figure in figures(comparison).items()),
        "</div>",
        "<h2>What ran</h2>",
        _list([_machine(row) for row in rows]),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width, initial-scale=1"><title>Should this Llama be trained in FP8?</title>'
        f"<style>{STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _list(sentences: list[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "</ul>"


def _table(rows: list[dict], baseline: str) -> str:
    first, speed, cost = cells(rows, baseline)
    head = "".join(f"<th>{escape(name.replace('BASELINE', baseline))}</th>" for name in (*first, *SPEED, *COST))
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in a + b) + "</tr>"
        for a, b in zip(speed, cost, strict=True)
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _figure(caption: str, figure: Figure) -> str:
    svg = plots.to_svg(figure)
    return f"<figure>{svg[svg.index('<svg') :]}<figcaption>{escape(caption)}</figcaption></figure>"


def _machine(row: dict) -> str:
    """Which run, where."""
    where = f" on {row['device']}" if row["device"] else ""
    overlays = f", overlays {', '.join(row['overlays'])}" if row["overlays"] else ""
    return f"{row['run']}: {row['source']}{where}{overlays}, {status(row)}"
