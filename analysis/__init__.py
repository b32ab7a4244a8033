"""Answer from run directories, by a few general rules: should this Llama be trained in FP8?

    python -m analysis.report RUNS [--reference RECIPE] [--verbose] [--json FILE] [--html FILE]

Read in this order; a file imports only files above it:

    runs.py         read a run: how it was made, and a table of its steps
    study.py        read all runs of a study; rule 0: they are one training
    comparable.py   can runs be compared? Rule 1: two recipes' runs differ in nothing except the
                    recipes; rule 2: each run did what its recipe says
    speed.py        is a recipe faster? Tokens/s counted in several ways; rule 3: every honest way
                    to count finds the same lead
    break_even.py   the step from which a recipe has taken less wall time
    losses.py       is its loss the same? Rule 4: runs of a seed begin at one loss; rule 5: they
                    stay near one another; rule 6: no recipe lost more of its runs
    comparison.py   one outcome a recipe
    answer.py       the outcome in sentences
    tables.py       tables of recipes, and of runs
    report.py       the command line, JSON and a page

Then what shows it: plots/ draws; newest.py finds the runs that a notebook opens.
"""
