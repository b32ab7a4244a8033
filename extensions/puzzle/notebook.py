# %% [markdown]
# # Does FP8 not learn on one GPU at batch 1?
#
# A published benchmark of Llamas on B200 GPUs (D. Baisya, *Pre-Training Large Language Models with
# FP8*, December 2025, section 9.5) found that it does not. FP8's loss fell by about 1 and stayed
# there, bf16's went on, and on two and four GPUs both were equal. The text blames gradient noise.
# There is a simpler explanation: the order of two calls.
#
# The benchmark asks torchao for float8 all-gather. The conversion to FP8 then puts each weight into
# a *new* parameter. The conversion is left to Accelerate's `prepare(model, optimizer)`, so the
# optimizer is built before it. Where Accelerate applies FSDP2, on several GPUs, it hands the
# optimizer the new parameters. In a single process it converts and does neither (`_prepare_ao` and
# `_prepare_fsdp2` in its accelerator.py; tried with version 1.12.0, a small model and a CPU). The
# optimizer then steps tensors that the model no longer uses. Nothing fails, and embedding, norms
# and head still learn.
#
# So here are five runs on the same weights and batches, at batch 1, on one device, without FSDP and
# gradient clipping: bf16; FP8; FP8 with new parameters and the optimizer built after conversion;
# the same with the optimizer built before conversion; bf16 with those weights frozen that this
# optimizer does not own. They tell whether FP8 learns, and whether the order of calls is enough to
# stop it. They do not tell what happened in the benchmark's own runs.

# %%
from analysis import newest, plots
from analysis.answer import describe_training
from analysis.comparison import compare
from analysis.study import read_study
from extensions.puzzle import tables

comparison = compare(read_study(newest.find_runs("one_gpu_puzzle")))
print(describe_training(comparison))

# %% [markdown]
# ## The answer
#
# The order of calls explains the report if the runs with the old order end at the loss of frozen
# weights, and all others at bf16's. Mean over seeds, in nats a token:

# %%
tables.final_losses(comparison).round(4)

# %%
plots.loss(comparison)

# %% [markdown]
# The recipes that learn, by step:

# %%
plots.loss_difference(tables.select_learning_recipes(comparison))

# %% [markdown]
# ## Who owns what
#
# Parameter tensors, from each run's proof. Orphans are trainable, get a gradient and are in
# no optimizer. The first optimizer step moved some of the tensors that it should move, and others
# stayed still. Norm weights of 1 are neither, because bf16 cannot hold so small a step.
# `elements_in_optimizer` counts numbers, not tensors.

# %%
tables.ownership(comparison)
