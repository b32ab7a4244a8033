# %% [markdown]
# # Models, lengths and numbers of GPUs: does FP8 gain everywhere?
#
# A benchmark on four B200 (D. Baisya, *Pre-Training Large Language Models with FP8*, December 2025)
# measured five models at three lengths on one, two and four GPUs, in bf16 and in FP8. Its text
# gives few figures, and these do not fit together. Here they are read again. Then comes the same
# kind of sweep, with everything recorded.
#
# Figures of that text are in `published_b200.yaml`, with the sections that they are from.
#
# ## Does it scale as it says?
#
# It prints an efficiency of 88 to 95 % on four GPUs. Llama 3.2 1B processes 42,000 tokens/s on one
# GPU and 120,000 to 130,000 on four. Four times 42,000 is 168,000, so the efficiency is 71 to 77 %.

# %%
import pandas as pd

from analysis import newest
from extensions.sweep import report, tables
from extensions.sweep.cells import FILE

scaling = pd.DataFrame(tables.B200["scaling"])
scaling.eval("efficiency = `tokens/s on 4` / `tokens/s on 1` / 4").round(3)

# %% [markdown]
# ## How much of the GPU does it use?
#
# Its peaks, 4,500 and 9,000 TFLOP/s, are those with structured sparsity, which dense training
# cannot reach. Of the dense peaks its MFU is twice as high.

# %%
pd.DataFrame(tables.B200["mfu"]).eval("dense_mfu = 2 * `TFLOP/s` / `its peak`").round(3)

# %% [markdown]
# ## Is attention why longer rows are slower?
#
# It says that each doubling of the length halves tokens/s, because attention is quadratic.
# Attention's FLOPs are a small part of a token's at these lengths. If each FLOP took as long at all
# lengths, tokens/s at each length would be these shares of those at 2,048:

# %%
tables.lengths()

# %% [markdown]
# ## The sweep, measured here
#
# A cell is a model, a length and a number of GPUs (or of CPU processes); in each cell the recipes
# start from the same weights and read the same batches. Efficiency is tokens/s on N over N times
# tokens/s on one. Intervals take several seeds.
#
# The benchmark's own sweep, on a node with four B200: `python -m extensions.sweep b200_blog
# --seeds 3`.

# %%
cells = report.read_cells(newest.find_runs(plan=FILE, command="extensions.sweep"))
print(report.answer(cells))

# %%
report.speed_ups(cells)

# %% [markdown]
# Every cell, with the answer of its study:

# %%
report.table(cells)

# %%
print(*report.notes(cells), sep="\n")
