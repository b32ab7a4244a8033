"""List the notebooks: what each one asks, what was found, and whose runs it shows.

Each fact stands once. The question is the notebook's first line. What was found is the first
sentence after **Found** (or **In short**) in the README.md beside the notebook, or in the notebook
itself. The runs are those that its code looks for.
"""

import os
import re
from pathlib import Path

from experiments.config.recipes import ROOT
from models.errors import PYTHON

INDEX = "index"
NOTEBOOKS = {source.stem: source for source in sorted(ROOT.glob("analysis/notebooks/*.py"))}
for source in sorted(ROOT.glob("extensions/*/notebook.py")):
    NOTEBOOKS[source.parent.name] = source
RUNS_CALL = re.compile(r"newest\.find_(kept_)?runs\((.*?)\)")


def write_index() -> str:
    """Write a table in Markdown, with a row a notebook. Links are from the folder of the index."""
    rows = ["| question | found | Run All Cells shows |", "|---|---|---|"]
    for name, source in NOTEBOOKS.items():
        if name == INDEX:
            continue
        path = os.path.relpath(source.with_suffix(".ipynb"), NOTEBOOKS[INDEX].parent)
        question = f"[{read_question(source)}]({path})"
        rows.append(f"| {question} | {read_finding(source)} | {name_runs(source)} |")
    return "\n".join(rows)


def read_question(source: Path) -> str:
    """Read the title of a notebook."""
    titles = re.findall(r"^# # (.*)", source.read_text("utf-8"), flags=re.MULTILINE)
    return titles[0]


def read_finding(source: Path) -> str:
    """Read in a sentence what was found; links become text.

    Raises:
        ValueError: neither the notebook nor the README.md beside it says it.
    """
    readme = source.with_name("README.md")
    if readme.exists():
        text = readme.read_text("utf-8")
    else:
        text = re.sub(r"^# ?", "", source.read_text("utf-8"), flags=re.MULTILINE)
    paragraph = re.search(r"^\*\*(?:Found|In short)\b(.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    if paragraph is None:
        raise ValueError(f"{source}: no paragraph begins with **Found**")
    words = " ".join(paragraph[1].replace("**", "").split()).removeprefix(": ")
    words = re.sub(r" ?\(\[[^)]*\]\([^)]*\)(?:, \[[^)]*\]\([^)]*\))*\)", "", words)
    words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", words)
    sentence = re.split(r"(?<=\.) ", words)[0]
    return sentence[0].upper() + sentence[1:]


def name_runs(source: Path) -> str:
    """Name the runs that a notebook shows when it is executed."""
    calls = RUNS_CALL.findall(source.read_text("utf-8"))
    if not calls or calls[0][0]:
        return "the runs in `results/`"
    arguments = calls[0][1]
    study = re.match(r'"(\w+)"', arguments)
    command = re.search(r'command="([\w.]+)"', arguments)
    if command:
        return f"your newest study (`{PYTHON} -m {command[1]}`)"
    if study:
        return f"your newest study (`{PYTHON} -m experiments.study {study[1]}`)"
    if 'device="cuda"' in arguments:
        return "your newest study on a GPU"
    return "your newest study"


def describe_outputs(source: Path) -> str:
    """Say whose runs the stored outputs of a notebook show, and what Run All does."""
    runs = name_runs(source)
    if not runs.startswith("your"):
        return f"*The outputs below, and those of Run All Cells, are of {runs}.*"
    return (
        f"*The outputs below are of runs in `results/`. Run All Cells makes them of {runs} "
        "instead, if there is one that is complete. `make lab RUNS=FOLDER` chooses another.*"
    )
