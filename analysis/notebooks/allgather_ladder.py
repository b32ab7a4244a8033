# %% [markdown]
# # What does FP8 bring where GPUs share a model?
#
# FSDP2 gives every GPU a shard of each weight. Before a block computes, its weights are
# all-gathered; after its backward pass, its gradients are reduce-scattered. If weights are cast to
# FP8 before they are gathered, half as many bytes are sent. Nothing else changes, for they would be
# cast to FP8 afterwards anyway. In return the GPUs must agree on the largest value of each weight,
# from which its scale follows, because each GPU knows only its own shard.
#
# *Enabling Float8 All-Gather in FSDP2* (dev-discuss.pytorch.org/t/2359) climbed there in steps,
# with Llama 3 70B on 128 H100: FP8 matmuls of weights gathered in bf16 (1.40 times as fast as
# bf16); gathered in FP8, with an all-reduce for each weight's scale (1.42); one all-reduce a step
# for all of them (1.50). It also found fewer multiprocessors for NCCL useful (`NCCL_MAX_CTAS` 16 or
# 8), without a figure. The study `allgather_ladder` has the same rungs as recipes, each one change
# from the one before.
#
# This notebook shows the newest such study under `runs/`, or the one in `results/`. For another:
# `RUNS=folder make lab`.

# %%
from analysis import newest, plots, prediction, studies
from analysis.comparison import compare
from analysis.table import trained

comparison = compare(newest.runs("allgather_ladder"))
print(trained(comparison))

# %% [markdown]
# ## Speed and bytes
#
# Left what is published, in the middle what was measured here, each on an axis of its own. A CPU's
# speed says nothing about a GPU's. The bytes are the same on both.

# %%
plots.allgather_ladder(comparison)

# %% [markdown]
# MB a step, as one profiled step of each run showed, and the closed form of what is gathered
# (`fsdp_bytes` in `models/flops.py`). A run whose recipe promises FP8 all-gather and sends more
# than the closed form fails. Embedding, head and norms stay in bf16. A scale for each weight is
# agreed on twice a step, because the weights of a block are gathered twice. Further all-reduces are
# of the gradient norm, of the loss where it is logged, and of requests to stop.

# %%
studies.ladder_bytes(comparison.frames.runs).round(3)

# %% [markdown]
# ## Do the rungs compute the same?
#
# A cast before the gather and a cast after it give the same numbers if the scale is the same. Each
# rung against the first one with FP8 matmuls, in losses and gradient norms:

# %%
print(*studies.same_numbers(comparison.frames.windows), sep="\n")

# %% [markdown]
# ## Prediction for GPUs
#
# Nothing below was measured here. It is the roofline of a step (`models/floors.py`): matmuls and
# attention at the GPU's sustained rates (of GH200 the datasheet's), other kernels at its memory
# bandwidth, and what the links cannot send while the GPU computes. Latencies, contention for
# multiprocessors and the host are left out. Measured steps are longer, mostly by what FP8 does not
# shorten. So the speed-ups are upper limits. Published: 8 B from torchtitan's benchmark of December
# 2024, whose H100s had slower memory and 500 W; 70 B from the post, whose batch is not known
# (assumed: one row of 8,192 tokens a GPU, activations recomputed).

# %%
prediction.table().round(2)

# %% [markdown]
# * In a node of eight, and between nodes with 400 Gb/s for each GPU, matmuls take longer than
#   sending in either precision. What FP8 all-gather then saves is casts: each GPU casts its shard,
#   not the whole model.
# * So bandwidth does not explain the published 1.42 and 1.50. If the step in bf16 took as long as
#   predicted, each of the 1,120 all-reduces for a single scale cost so many microseconds:

# %%
print(f"{1e6 * prediction.cost_of_an_all_reduce():.0f}")

# %% [markdown]
# * On Alps a node has a quarter of that bandwidth, so 70 B sharded over 128 GPUs waits for its
#   weights. There FP8 matmuls alone gain nothing, and FP8 all-gather makes them pay. Groups of GPUs
#   that each hold the whole model (`parallelism.data_parallel_replicate_degree`) send less between
#   nodes. That was not predicted.
#
# Runs that are left out or in doubt:

# %%
print(*comparison.frames.problems or ["none"], sep="\n")
