# %% [markdown]
# # Which scaling does FP8 need?
#
# FP8 numbers are floating-point numbers: a scale has to bring values into the format's range, and
# precision is the same throughout that range. One scale can be shared by a tensor, a row, a block
# of 128, 32 or 16 values. Finer scales take more bytes and keep more of a tensor with outliers.
# `extensions/scalings/__init__.py` describes them. Those of blocks are emulated: rounded to FP8, or
# to the 4 bits of NVFP4, and multiplied in float32, so that their speed says nothing.
#
# The runs are small and short: 60 steps of 256 tokens, 5 seeds. Failures of FP8 that were reported
# came late, after 200 B tokens for SwiGLU's outliers (arXiv 2409.12517). Runs like these cannot
# show late failures; the planted outliers below stand for them.

# %%
from analysis import newest, plots
from analysis.answer import list_loss_verdicts
from analysis.comparison import compare
from analysis.study import read_study
from extensions.scalings import tables

comparison = compare(read_study(newest.find_kept_runs("scalings")))
formats = compare(read_study(newest.find_kept_runs("formats")))
scalings = tables.scaling_table(comparison)

# %% [markdown]
# ## Which format ends at bf16's loss?
#
# FP8 with one scale a tensor or a row, MXFP8 by torchao's code and by this extension's, and NVFP4,
# in all blocks or with the last 15 % of them in bf16. The model has 2 blocks and 3.7 M parameters:
# 15 % of them are rounded up to one block.

# %%
print(*list_loss_verdicts(formats), sep="\n")

# %%
plots.loss_difference(formats)

# %% [markdown]
# ## Losses and signal to noise of all scalings
#
# This study is older, of the same model. It has no recipe in NVFP4 and none by torchao's MXFP8.
#
# The signal to noise of a matmul compares its result with rounded operands: 10 log10(squares of
# the right result / squares of the error). It was measured for the three matmuls of each layer on
# inputs, weights and gradients of a run in bf16 after its last step (`signal_to_noise.py`).

# %%
scalings.round(4)

# %% [markdown]
# Verdicts over the seeds:

# %%
print(*list_loss_verdicts(comparison), sep="\n")

# %% [markdown]
# * e5m2 gradients cost the two backward matmuls 4 dB, whatever the scaling: they have one bit less
#   to round to. Their range is not used here.
# * Rounding a scale of 32 values as the OCP text does costs 1 dB or more, since the largest values
#   saturate.
# * A finer scale keeps hardly more of these tensors.
# * Delayed scales of one step alone (`scaling_delayed_1`) vary most from seed to seed, probably
#   because each step in which values grow saturates.
#
# ## How far away is the trouble?
#
# Four features of each norm's output and of each SwiGLU were multiplied by a power of two, and the
# weights that read them divided by it. The exact loss does not change.
#
# What long training itself grows is in SwiGLU: its two input matrices align and become larger
# (arXiv 2409.12517), so that a feature grows with their square, on some tokens only. For four
# features of each SwiGLU w3's rows were made w1's, both were multiplied by a power of two, and the
# weights of w2 that read them divided by its square.
#
# The figures show how far the loss lies above the loss of the same model without rounding, by the
# factor: on the left for outliers, on the right for SwiGLU. The grey line is the loss at which a
# scaling counts as broken.

# %%
tables.draw_stress()

# %% [markdown]
# The signal to noise of w2's output, by SwiGLU's factor:

# %%
tables.signal_to_noise("swiglu")

# %% [markdown]
# A scaling breaks where its loss is 0.01 above its own without stress. The power of two there is
# the distance of this run's tensors from trouble; the columns `breaks at 2^` of the table above
# have it for all scalings. For SwiGLU it is about half of that for outliers, since the feature
# grows with the square. `delayed` rounds as `tensorwise` while values do not jump. Where values
# jump beyond the last steps' largest, they saturate for one step.
