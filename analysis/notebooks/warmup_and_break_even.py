# %% [markdown]
# # Is FP8 worth it for a run of N steps?
#
# Compilation comes first and pays back later. The published study left the warm-up out of its
# figure and concluded that with it FP8 brings no benefit; whether that holds depends on how long
# the run is.
#
# It opens the newest study under `runs/`, or the kept one under `results/`. For another:
# `RUNS=folder jupyter lab`.

# %%
from analysis import newest, plots
from analysis.comparison import compare, cost_by_steps

comparison = compare(newest.runs())
runs = comparison.frames.runs

# %% [markdown]
# ## Where the warm-up goes
#
# From the start of the process to the end of the first step.

# %%
plots.warm_up(runs)

# %% [markdown]
# ## When it is paid back

# %%
plots.lead(comparison)

# %%
print("\n".join(b.sentence() for b in comparison.break_evens.values()) or "No run in FP8 to judge.")

# %% [markdown]
# ## A run of N steps
#
# Hours of one run, warm-up included: what was measured, and beyond it the mean seconds of a steady
# step.

# %%
cost_by_steps(comparison, [100, 1_000, 10_000, 100_000]).round(3)
