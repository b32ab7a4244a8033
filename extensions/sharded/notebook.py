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

# %%
from analysis import newest, plots
from analysis.answer import describe_training, list_left_out
from analysis.comparison import compare
from analysis.study import read_study
from extensions.sharded import tables

comparison = compare(read_study(newest.find_runs("allgather_ladder")))
print(describe_training(comparison))

# %% [markdown]
# ## Speed and bytes
#
# A CPU's speed says nothing about a GPU's. The bytes are the same on both.

# %%
plots.tokens_per_second(comparison)

# %% [markdown]
# MB a step, as one profiled step of each run showed, and the closed form of what is gathered
# (`fsdp_bytes` in `collectives.py`). A run whose recipe promises FP8 all-gather and sends more
# than the closed form fails. Embedding, head and norms stay in bf16. A scale for each weight is
# agreed on twice a step, because the weights of a block are gathered twice. Further all-reduces are
# of the gradient norm, of the loss where it is logged, and of requests to stop. Published
# speeds are over bf16.

# %%
tables.ladder_bytes(comparison).round(3)

# %% [markdown]
# ## Do the rungs compute the same?
#
# A cast before the gather and a cast after it give the same numbers if the scale is the same. Each
# rung against the first one with FP8 matmuls, in losses and gradient norms:

# %%
print(*tables.same_numbers(comparison), sep="\n")

# %% [markdown]
# Runs that are left out:

# %%
print(*list_left_out(comparison) or ["none"], sep="\n")
