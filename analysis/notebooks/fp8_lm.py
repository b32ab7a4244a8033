# %% [markdown]
# # FP8 beyond products
#
# FP8-LM (Peng et al., arXiv 2310.18313) puts more than matrix products in FP8: gradients that GPUs exchange, the states
# of the optimizer, and what sharding sends. It opens the runs that are kept under `results/fp8_lm`.

# %% [markdown]
# ## Gradients
#
# With FSDP2 each of n GPUs has gradients of all parameters, and needs the sum over all GPUs of its own share. The
# recipe `fp8_gradients` sends them in e4m3, with a scale for each block of 256, by all-to-all: each GPU gets its share
# of everybody's gradients, and adds them up in float32 (`models/fp8_gradients.py`). A ring of partial sums in FP8 would
# send as many bytes.

# %%
from analysis import gradients, newest, plots
from analysis.comparison import compare
from analysis.table import rows_of, trained

exchanged = compare(newest.results(gradients.STUDY))
print(trained(rows_of(exchanged)))

# %% [markdown]
# Bytes that a step sends, as the profile of a step showed in each run. A run whose recipe promises FP8 gradients and
# sends more bytes than the closed form (`fsdp_bytes` in `models/flops.py`) fails.

# %%
gradients.sent(exchanged.frames.runs).round(3)

# %% [markdown]
# What it does to the loss:

# %%
print(*(verdict.sentence() for verdict in exchanged.verdicts.values()), sep="\n")
print(gradients.apart(exchanged.frames.windows))

# %%
plots.loss_difference(exchanged.differences, exchanged.margin, exchanged.baseline)

# %% [markdown]
# ### Why the sum is in float32
#
# FP8-LM adds up in FP8, and every rank that adds its gradients rounds the sum again. It also has to choose a factor
# before the rounding. With 1 (post-scaling: the mean is taken after the sum) sums exceed FP8's largest value. With 1/n
# (pre-scaling) none can, but small gradients become 0. Its automatic scaling looks for a factor mu between them.
#
# `experiments/benchmark_gradient_sums.py` took gradients of the small model after 60 steps, in 32 different batches, as
# those of 32 ranks, and added up those of the first 2 to 32 in each way. Signal to noise of the sum, in dB, over all
# parameters:

# %%
gradients.decibels().round(1)

# %%
plots.gradient_sums(gradients.sums())

# %% [markdown]
# Added up in float32, a gradient is rounded once, and the errors of the ranks average out, so the sum of more ranks is
# no less exact. No sum can overflow, so no factor has to be found. Added up in FP8, the sum is less exact with every
# rank. The factor matters if it is 1, and otherwise little: the best one in hindsight, of 17 for each parameter, is
# hardly better than mu or 1/n. What FP8 sums lose, they lose by the rounding of partial sums, which no factor mends.
