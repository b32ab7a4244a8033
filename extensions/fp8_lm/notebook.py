# %% [markdown]
# # FP8 beyond matmuls
#
# FP8-LM (Peng et al., arXiv 2310.18313) puts more than matmuls in FP8: gradients that GPUs
# exchange, the states of the optimizer, and what sharding sends.

# %% [markdown]
# ## Gradients
#
# With FSDP2 each of n GPUs has gradients of all parameters, and needs the sum over all GPUs of its
# own share. The recipe `fp8_gradients` sends them in e4m3, with a scale for each block of 256, by
# all-to-all. Each GPU gets its share of everybody's gradients and adds them up in float32
# (`gradients.py`). A ring of partial sums in FP8 would send as many bytes.

# %%
from analysis import newest, plots
from analysis.answer import describe_training, list_loss_verdicts
from analysis.comparison import compare
from analysis.study import read_study
from extensions.fp8_lm import tables

exchanged = compare(read_study(newest.find_kept_runs("gradients")))
print(describe_training(exchanged))

# %% [markdown]
# MB that a step sends, as a profiled step of each run showed. A run whose recipe promises FP8
# gradients and sends more than the closed form fails.

# %%
tables.levels(exchanged).loc[:, :"sent, to bf16"].round(3)

# %% [markdown]
# What it does to the loss:

# %%
print(*list_loss_verdicts(exchanged), sep="\n")

# %%
plots.loss_difference(exchanged)

# %% [markdown]
# ### Why the sum is in float32
#
# FP8-LM adds up in FP8, and every rank that adds its gradients rounds the sum again. A factor has
# to be chosen before the rounding. With 1 (post-scaling: the mean is taken after the sum) sums
# exceed FP8's largest value. With 1/n (pre-scaling) no sum can, but small gradients become 0.
# FP8-LM's automatic scaling looks for a factor mu between them.
#
# `python -m extensions.fp8_lm.gradient_sums` took gradients of the small model after 60
# steps, in 32 different batches, as if from 32 ranks. It added up the gradients of the first 2 to
# 32 in each way. Signal to noise of the sum, in dB, over all parameters:

# %%
tables.gradient_sums().T.round(1)

# %% [markdown]
# In float32 sums a gradient is rounded once, and the errors of the ranks average out. No sum can
# overflow, so no factor has to be found. Summing in FP8 loses precision with every rank. The factor
# matters if it is 1, and otherwise little: the best one in hindsight, of 17 for each parameter, is
# hardly better than mu or 1/n. What is lost is lost by rounding partial sums, whatever the factor.

# %% [markdown]
# ## Optimizer states
#
# AdamW keeps two moments of each parameter, and master weights beside parameters that are too
# coarse to be stepped. FP8-LM's precision decoupling gives each state as few bits as it needs: the
# first moment FP8 (E4M3), the second moment FP16, the master weights FP16, with a scale for each
# tensor. The recipe `fp8_optimizer` does that (`optimizer.py`). The study
# `precision_decoupling` repeats the paper's table 6 and figure 8, in which one state at a time has
# another precision; here matmuls are in bf16 in all runs, so that only the optimizer differs.
#
# * `float32_optimizer`: the same code with all three states in float32; the others are compared to
#   it.
# * `float32_parameters`: PyTorch's AdamW on float32 parameters, which are their own master weights.
#   Then activations between matmuls are in float32 too, so its loss differs for more than one
#   reason.
# * `baseline`: bf16 parameters that are stepped themselves, and bf16 moments.

# %%
decoupled = compare(read_study(newest.find_kept_runs("precision_decoupling")))
print(describe_training(decoupled))

# %% [markdown]
# Bytes count a parameter and its optimizer states, measured from the tensors that a run
# keeps from step to step: 7 against 12 with float32 parameters. The paper counts 6 against 16:
# master weights, moments, and gradients of 1 byte against 4, without the parameters that the
# matmuls read. FSDP2 keeps gradients until the step in the dtype of the parameters, so here they
# are not of 1 byte. The last column is what the paper says of the loss.

# %%
tables.optimizer_states(decoupled).round(4)

# %%
tables.final_loss_rows(decoupled)

# %% [markdown]
# By step, without the two recipes that end far above:

# %%
plots.loss_difference(tables.select_recipes(decoupled))

# %%
print(*list_loss_verdicts(decoupled), sep="\n")

# %% [markdown]
# Here the paper's order came out, in all four of its settings. Master weights in bf16 are hardly
# better than none, the `baseline`: both round a weight to 8 significant bits after each step.
#
# Why the second moment needs range: AdamW divides by its root. E4M3 holds values down to 2^-18 of a
# tensor's largest, and smaller ones become 0. Then the first moment is divided by epsilon, 1e-8,
# and the weight is thrown to the end of its range. FP16 holds values down to 2^-40. Why master
# weights need precision: E4M3 has 4 significant bits, and a step of less than 1/32 of a weight is
# lost.

# %% [markdown]
# ## All levels together
#
# The recipe `fp8_lm` has FP8 matmuls, FP8 all-gather, FP8 gradients and these optimizer states. The
# study `fp8_lm` has each beside compiled bf16, whose bf16 states take 6 bytes and cannot hold small
# steps.
#
# What the paper says: communication 63 to 65 % less; GPU memory 69.6 to 49.4 GB (7 B), 68.2 to 48.9
# (13 B), 66.1 to 40.3 (175 B); zero-shot accuracy 58.4 against 58.0 and 61.0 against 60.4. Here
# less is saved on the wire, because embedding and head are gathered in bf16, and they are two
# fifths of so small a model.

# %%
levels = compare(read_study(newest.find_kept_runs("fp8_lm")))
print(describe_training(levels))
tables.levels(levels).round(4)

# %% [markdown]
# Whole tensors dealt out to ranks, the paper's way to shard (ZeRO), are not built: for 8 B the
# fullest of 32 ranks would hold 2.09 times the average, and of 128 ranks 8.4 times. Scales that all
# ranks agree on remove the reason for it: a tensor that FSDP2 cuts into shards is scaled as a
# whole.
