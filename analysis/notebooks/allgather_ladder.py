# %% [markdown]
# # What does FP8 bring where GPUs share a model?
#
# FSDP2 gives every GPU a shard of each weight. Before a block computes, its weights are
# all-gathered; after its backward pass, its gradients are reduce-scattered. If weights are cast to
# FP8 before they are gathered, half as many bytes are sent, and nothing else changes: they would be
# cast to FP8 afterwards anyway. In return the GPUs must agree on the largest value of each weight,
# from which its scale follows, because each of them knows only its own shard.
#
# *Enabling Float8 All-Gather in FSDP2* (dev-discuss.pytorch.org/t/2359) climbed there in steps,
# with Llama 3 70B on 128 H100: FP8 matmuls of weights gathered in bf16 (1.40 times as fast as
# bf16); gathered in FP8, with an all-reduce for each weight's scale (1.42); one all-reduce a step
# for all of them (1.50). It also found fewer multiprocessors for NCCL useful (`NCCL_MAX_CTAS` 16 or
# 8), without a figure. The study `allgather_ladder` has the same rungs as recipes, each one change
# from the one before.
#
# It opens the newest such study under `runs/`, or the one in `results/`. For another: `RUNS=folder
# jupyter lab`.

# %%
from analysis import newest, plots, prediction, studies
from analysis.comparison import compare
from analysis.table import rows_of, trained

comparison = compare(newest.runs("allgather_ladder"))
runs, windows = comparison.frames.runs, comparison.frames.windows
print(trained(rows_of(comparison)))

# %% [markdown]
# ## Speed and bytes

# %%
plots.allgather_ladder(comparison)

# %% [markdown]
# MB a step, as one profiled step of each run showed, with the closed form of what is gathered
# (`fsdp_bytes` in `models/flops.py`). A run whose recipe promises FP8 all-gather and sends more
# than that fails. What is left of the gathered bytes in FP8 is the embedding, the head and the
# norms, which stay in bf16. Scales of their own are agreed on twice a step, since the weights of a
# block are gathered twice. Further all-reduces are of the gradient norm, of the loss where it is
# logged, and of requests to stop.

# %%
studies.ladder_bytes(runs).round(3)

# %% [markdown]
# ## Do the rungs compute the same?
#
# A cast before the gather and one after it give the same numbers, provided that the scale is the
# same. Each rung against the first one with FP8 matmuls, in losses and gradient norms:

# %%
print("\n".join(studies.same_numbers(windows)))

# %% [markdown]
# ## Prediction for GPUs
#
# Nothing below was measured here. It is the roofline of a step (`models/floors.py`): matmuls and
# attention at the GPU's sustained rates (of GH200 the datasheet's), other kernels at its memory
# bandwidth, and what the links cannot send while the GPU computes. Latencies, contention for
# multiprocessors and the host are left out. Measured steps are longer than that, mostly by what FP8
# does not shorten, so the speed-ups are upper limits. Published: 8 B from torchtitan's benchmark of
# December 2024, whose H100s had slower memory and 500 W; 70 B from the post, whose batch is not
# known (assumed: one row of 8,192 tokens a GPU, activations recomputed).

# %%
predicted = prediction.table()
predicted.round(2)

# %% [markdown]
# * In a node of eight, and between nodes with 400 Gb/s for each GPU, matmuls take longer than
#   sending in either precision. What FP8 all-gather then saves is casts: each GPU casts its shard,
#   not the whole model.
# * So bandwidth does not explain why the published rungs differ by 1.42 and 1.50. If the step in
#   bf16 took as long as predicted, each of the 1,120 all-reduces for a single scale cost so many
#   microseconds:

# %%
print(f"{1e6 * prediction.cost_of_an_all_reduce(predicted):.0f}")

# %% [markdown]
# * On Alps a node has a quarter of that bandwidth, so that 70 B sharded over 128 GPUs waits for its
#   weights. There FP8 matmuls alone gain nothing, and FP8 all-gather is what makes them pay. Groups
#   of GPUs that each hold the whole model (`parallelism.data_parallel_replicate_degree`) send less
#   between nodes; that was not predicted.
#
# What is to be known of the runs, and which were left out:

# %%
print(
    "\n".join(comparison.frames.problems)
    or "Nothing: every run that was found is complete and in the figures."
)
