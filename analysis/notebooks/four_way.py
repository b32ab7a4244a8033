# %% [markdown]
# # Four ways to train one Llama
#
# bf16 eager, bf16 compiled, FP8 with a scale per row, FP8 with a scale per tensor: the same weights, the same batches.
# First the four comparisons of the published study (loss, tokens/s, MFU, wall time after warm-up), then what they hide,
# then the answer.
#
# It opens the newest study under `runs/`, or the kept one under `results/`. For another: `RUNS=folder jupyter lab`.

# %%
from analysis import newest, plots
from analysis.comparison import answer, compare

comparison = compare(newest.runs())
runs, windows = comparison.frames.runs, comparison.frames.windows
runs.groupby("recipe", sort=False).agg(runs=("run", "count"), device=("device", "first"), steps=("steps", "max"))

# %% [markdown]
# ## The four comparisons
#
# **Loss.** Light lines are what was logged, strong ones are smoothed, the band spans the seeds.

# %%
plots.loss(runs, windows)

# %% [markdown]
# **Tokens per second**, over steady steps: after the first ten. The interval is the median's, from a block bootstrap.

# %%
plots.tokens_per_s(runs, windows, comparison.published)

# %% [markdown]
# **Model FLOPs utilisation.** The published convention divides by the bf16 peak, also where the work is done in FP8.
# Where the device has an FP8 peak, two more denominators say what that hides.

# %%
plots.mfu(runs)

# %% [markdown]
# **Wall time after warm-up**, as published: it starts at the end of the first step, so compiling costs nothing.

# %%
plots.wall_after_warm_up(runs, windows)

# %% [markdown]
# ## What they hide
#
# Four lines on top of each other do not show whether the losses are equal. Runs with the same seed share weights and
# batches, so their difference can be resolved far below what a change of seed does. The grey margin is what that
# surely does, and at most 0.25 % of the loss.

# %%
margin = next((v.margin for v in comparison.verdicts.values()), None)
plots.loss_difference(comparison.differences, margin, comparison.baseline)

# %% [markdown]
# A median has no tail; the steps do.

# %%
plots.step_time(runs, comparison.steps)

# %% [markdown]
# Whether FP8 saved memory:

# %%
plots.memory(runs)

# %% [markdown]
# ## The answer

# %%
print("\n".join(answer(comparison)))

# %% [markdown]
# What was left out, and why:

# %%
print("\n".join(comparison.frames.problems) or "Nothing: every run that was found is complete and in the figures.")
