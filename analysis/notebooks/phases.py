# %% [markdown]
# # Some steps in bf16, the others in FP8: what does that buy, and what does it cost?
#
# The first steps of a training change the weights most, and the last ones decide the final loss. So
# a guide to FP8 training (*Turn on FP8 training*, a documentation page that is a source of this
# project) knows three patterns: FP8 all the way; bf16 while the learning rate warms up, then FP8;
# and FP8, then bf16 at the end. Its code does the latter two by hand: save a checkpoint, and start
# again in the other precision.
#
# Here a run switches by itself, between two steps, with the same parameters and optimizer
# (`quantize.linear.float8.first_step` and `last_step`). A switch gives the same losses as a
# checkpoint that the other recipe goes on from, bit for bit (`tests/training/test_phases.py`). The
# five recipes start from the same weights and read the same batches: compiled bf16, compiled
# tensorwise FP8, and three patterns of both.
#
# It opens the newest such study under `runs/`, or the one in `results/`. For another: `RUNS=folder
# jupyter lab`.

# %%
from analysis import newest, plots, studies
from analysis.comparison import compare

comparison = compare(newest.runs("phases"))
runs, windows = comparison.frames.runs, comparison.frames.windows
runs.groupby("recipe", sort=False).agg(
    runs=("run", "count"), device=("device", "first"), steps=("steps", "max")
)

# %% [markdown]
# ## What it costs
#
# Times are shares of compiled bf16's. The first switch compiles the model once more, and the way
# back nothing. The last column is an estimate for a GPU with FP8 units: each step takes as long as
# it took in its precision in the published study (one GH200, 8.05 B parameters, 8,800 and 10,945
# tokens/s), without warm-up and without switches.
#
# Times of a CPU say nothing about a GPU: a CPU has no FP8 units, so FP8 is slower there. And wall
# times compare only if the machine did nothing else meanwhile: what is known of that for kept runs
# is in `results/LOG.md`.

# %%
studies.phase_costs(comparison).round(2)

# %% [markdown]
# ## What it buys

# %%
plots.trade(comparison)

# %%
plots.loss_difference(comparison.differences, comparison.margin, comparison.baseline)

# %%
print("\n".join(verdict.sentence() for verdict in comparison.verdicts.values()))

# %% [markdown]
# What is to be known of the runs, and which were left out:

# %%
print(
    "\n".join(comparison.frames.problems)
    or "Nothing: every run that was found is complete and in the figures."
)
