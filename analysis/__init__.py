"""Answer from run directories, by a few general rules: should this Llama be trained in FP8?

    python -m analysis.report RUNS [--reference RECIPE] [--verbose] [--json FILE] [--html FILE]

Read in this order; a file imports only files above it:

    runs.py         read a run directory: how it was made, and a table of its steps
    packed.py       read the runs of a study that is kept in two files
    study.py        read all runs of a study; rule 0: they are one training
    alike.py        rule 1: two recipes' runs differ in nothing but the recipes
    proof.py        rule 2: each run did what its recipe says
    speed.py        tokens/s of a run, counted in several ways; the ratio of two recipes
    agreement.py    rule 3: every honest way of counting finds the same lead
    break_even.py   the step from which a recipe has taken less wall time
    losses.py       rule 4: runs of a seed begin at one loss; rule 5: they stay near one another
    comparison.py   rule 6: no recipe lost more of its runs; one outcome a recipe
    answer.py       the outcome in sentences
    table.py        a row a recipe, and a row a run
    report.py       the command line, and JSON

Then what shows it: plots/ and page.py draw; newest.py finds the runs that a notebook opens, and
notebook_tables.py has what only notebooks show.
"""
