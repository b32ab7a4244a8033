# %% [markdown]
# # Does FP8 not learn on one GPU at batch 1?
#
# A published benchmark of Llamas on B200 GPUs (D. Baisya, *Pre-Training Large Language Models with
# FP8*, December 2025, section 9.5) found that it does not: FP8's loss fell by about 1 and stayed
# there, bf16's went on, and on two GPUs and four both were equal. Gradient noise was blamed. There
# is a plainer candidate: the order of two calls.
#
# The benchmark asks torchao for float8 all-gather, for which the conversion to FP8 puts each weight
# into a *new* parameter, and leaves the conversion to Accelerate's `prepare(model, optimizer)`, so
# the optimizer is there first. Where Accelerate applies FSDP2, on several GPUs, it hands the
# optimizer the new parameters. In a single process it converts and does neither (`_prepare_ao` and
# `_prepare_fsdp2` in its accelerator.py; tried with version 1.12.0, a small model and a CPU): the
# optimizer steps tensors that the model no longer uses. Nothing fails, and embedding, norms and
# head still learn.
#
# So, without FSDP, five runs on the same weights and batches, at batch 1, on one device, without
# gradient clipping, as there: bf16; FP8; FP8 with new parameters and the optimizer built after
# them; the same with the optimizer built before them; bf16 with those weights frozen that this
# optimizer does not own. They can tell whether FP8 learns, and whether the order of calls is enough
# to stop it; not what happened in the benchmark's own runs.
#
# It opens the newest such study under `runs/`, or the one in `results/`. For another: `RUNS=folder
# jupyter lab`.

# %%
from analysis import newest, plots, studies
from analysis.comparison import compare

comparison = compare(newest.runs("one_gpu_puzzle"))
runs, windows = comparison.frames.runs, comparison.frames.windows
runs.groupby("recipe", sort=False).agg(
    runs=("run", "count"), device=("device", "first"), steps=("steps", "max")
)

# %% [markdown]
# ## Who owns what
#
# Parameter tensors, from each run's `proof.json`. Orphans are trainable, get a gradient and are in
# no optimizer. The first optimizer step moved some of those that it should move, and others stayed
# still; norm weights of 1 are neither, because their dtype, bf16, cannot hold so small a step.
# Owned is the optimizer's share of all elements.

# %%
studies.ownership(runs)

# %% [markdown]
# ## Who learns
#
# Where lines lie on each other, their markers are shifted.

# %%
plots.loss(runs, windows)

# %%
plots.loss_difference(comparison.differences, comparison.margin, comparison.baseline)

# %% [markdown]
# ## The answer

# %%
print("\n".join(studies.puzzle_answer(comparison)))

# %% [markdown]
# What is to be known of the runs, and which were left out:

# %%
print(
    "\n".join(comparison.frames.problems)
    or "Nothing: every run that was found is complete and in the figures."
)
