# %% [markdown]
# # From which step on does FP8 save time?
#
# Compilation takes time first and saves time later. The published study left the first step out of
# its figure. It concluded that with the first step FP8 brings no benefit. That depends on how long
# the run is.
#
# This notebook shows your newest study of a GPU under `runs/`. Without one it shows the published
# measurements of one GH200 (`results/gh200_2025-05_published/README.md`). For another study:
# `RUNS=folder make lab`.

# %%
from analysis import newest, plots
from analysis.comparison import compare
from analysis.study import read_study
from analysis.tables import cost_table

comparison = compare(read_study(newest.find_runs(device="cuda")))

# %% [markdown]
# ## The first step (compile)
#
# From the start of the process to the end of step 1:

# %%
plots.first_step(comparison)

# %% [markdown]
# ## When it is paid back

# %%
plots.lead(comparison)

# %%
for recipe in comparison.fp8:
    ahead = comparison.results[recipe].break_even
    print(f"{recipe} ahead of {comparison.reference}: {ahead}")

# %% [markdown]
# ## A run of N steps
#
# Hours of one run, first step included. Within the runs they were measured. Beyond them each step
# takes the time of a mean steady step.

# %%
cost_table(comparison, [100, 1_000, 10_000, 100_000]).round(3)
