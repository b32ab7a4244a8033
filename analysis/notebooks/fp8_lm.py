# %% [markdown]
# # FP8 beyond products
#
# FP8-LM (Peng et al., arXiv 2310.18313) puts more than matrix products in FP8: gradients that GPUs exchange, the states
# of the optimizer, and what sharding sends. It opens the runs that are kept under `results/`.

# %% [markdown]
# ## Optimizer states
#
# AdamW keeps two moments of each parameter, and master weights beside parameters that are too coarse to be stepped.
# FP8-LM's precision decoupling gives each of them the fewest bits that it bears: the first moment FP8 (E4M3), the
# second moment FP16, the master weights FP16, with a scale for each tensor. The recipe `fp8_optimizer` does that
# (`models/fp8_adamw.py`). The study `precision_decoupling` repeats the paper's table 6 and figure 8, in which one state
# at a time has another precision; here products are in bf16 in all runs, so that only the optimizer differs.
#
# * `float32_optimizer`: the same code with all three states in float32; the others are compared to it.
# * `float32_parameters`: PyTorch's AdamW on float32 parameters, which are their own master weights. Then activations
#   between products are in float32 too, so its loss differs for more than one reason.
# * `baseline`: bf16 parameters that are stepped themselves, and bf16 moments.

# %%
from analysis import decoupling, newest, plots
from analysis.comparison import compare
from analysis.table import rows_of, trained

decoupled = compare(newest.results(decoupling.STUDY))
print(trained(rows_of(decoupled)))

# %% [markdown]
# Bytes are those of a parameter and its optimizer states, measured from the tensors that a run keeps from step to step:
# 7 against 12 with float32 parameters. The paper counts 6 against 16: master weights, moments, and gradients of 1 byte
# against 4, without the parameters that the products read. FSDP2 keeps gradients until the step in the dtype of the
# parameters, so here they are not of 1 byte. The last column is what the paper says of the loss.

# %%
decoupling.states(decoupled).round(4)

# %%
plots.loss(decoupled.frames.runs, decoupled.frames.windows, True)

# %%
plots.loss_difference(decoupling.near(decoupled), decoupled.margin, decoupled.baseline)

# %% [markdown]
# Here the paper's order came out, in all four of its settings. Master weights in bf16 are hardly better than none, the
# `baseline`: both round a weight to 8 significant bits after each step. One seed gives no verdict.
#
# Why the second moment needs range: AdamW divides by its root. E4M3 holds values down to 2^-18 of a tensor's largest,
# and smaller ones become 0. Then the first moment is divided by epsilon, 1e-8, and the weight is thrown to the end of
# its range. FP16 holds values down to 2^-40. Why master weights need precision: E4M3 has 4 significant bits, and a step
# of less than 1/32 of a weight is lost.
