# %% [markdown]
# # Four ways to train one Llama
#
# bf16 eager, bf16 compiled, FP8 with a scale per row, FP8 with a scale per tensor: the same
# weights, the same batches. First the answer, then the four comparisons of the published study
# (loss, tokens/s, MFU, wall time after warm-up), then what they hide.
#
# It opens the newest study under `runs/`, or the kept one under `results/`. For another:
# `RUNS=folder jupyter lab`.

# %%
import pandas as pd

from analysis import newest, plots
from analysis.answer import answer, details
from analysis.comparison import compare
from analysis.studies import fp8_ranges
from analysis.table import matrix, rows_of, trained

comparison = compare(newest.runs())
runs, windows = comparison.frames.runs, comparison.frames.windows
print(trained(rows_of(comparison)))

# %% [markdown]
# ## The answer

# %%
columns, lines = matrix(comparison)
pd.DataFrame(lines, columns=columns).set_index("recipe")

# %%
print("\n".join(answer(comparison)))

# %% [markdown]
# ## The four comparisons
#
# **Loss**, smoothed over a tenth of the steps. The band spans the seeds.

# %%
plots.loss(runs, windows)

# %% [markdown]
# **Tokens per second**, by the mean steady step: those after the first ten. The interval comes from
# several runs of a recipe; one run has none, since it does not show by how much the next one will
# differ.

# %%
plots.tokens_per_s(comparison.rates, comparison.published)

# %% [markdown]
# **Model FLOPs utilisation.** The published convention divides by the bf16 peak, also where the
# work is done in FP8. Where the device has an FP8 peak, two more denominators say what that hides.

# %%
plots.mfu(runs)

# %% [markdown]
# **Wall time after warm-up**, as published: it starts at the end of the first step, so compiling
# costs nothing.

# %%
plots.wall_after_warm_up(runs, windows)

# %% [markdown]
# ## What they hide
#
# Four lines on top of each other do not show whether the losses are equal. Runs with the same seed
# share weights and batches, so their difference can be resolved far below what a change of seed
# does. In the grey margin, 0.25 % of the baseline's loss, two losses count as the same; the bands
# are the intervals that the verdict uses.

# %%
plots.loss_difference(comparison.differences, comparison.margin, comparison.baseline)

# %% [markdown]
# Compiling takes time before the first step. With it, a recipe may be behind for long:

# %%
plots.lead(comparison)

# %% [markdown]
# A mean hides how single steps vary:

# %%
plots.step_time(runs, comparison.steps)

# %% [markdown]
# Whether FP8 saved memory:

# %%
plots.memory(runs)

# %% [markdown]
# How near to its limits FP8 is. A format too narrow for its values turns small ones into 0, and
# that shows here before it shows in the loss. A weight's gradient is not cast in training; it
# stands for the gradients that are.

# %%
plots.fp8_ranges(fp8_ranges(runs))

# %% [markdown]
# ## What the answer rests on

# %%
print("\n".join(details(comparison)))

# %% [markdown]
# What is to be known of the runs, and which were left out:

# %%
print(
    "\n".join(comparison.frames.problems)
    or "Nothing: every run that was found is complete and in the figures."
)
