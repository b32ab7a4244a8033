# %% [markdown]
# # The published study, read again
#
# Four runs on one GH200 of the Alps cluster, May 2025 (A. Khan, *LSAI Project Feature: FP8
# Training*, ETH Zurich; code and logs: github.com/mak2508/lsai-proj, `output/data`): 8.05 B
# parameters, sequence 4096, batch 1, 1000 steps. The report drew three conclusions from four plots.
# Its own logs contradict two of them.
#
# The logs are not part of this project. Fetch them and name their folder: `PUBLISHED_LOGS=folder
# make notebooks`.

# %%
import os

from analysis import plots
from analysis.answer import answer, details
from analysis.comparison import compare, cost_by_steps

comparison = compare(os.environ["PUBLISHED_LOGS"])
runs, windows = comparison.frames.runs, comparison.frames.windows

# %% [markdown]
# ## Speed
#
# Steps after the first ten: in the table by their median, in the figure by their mean. The
# published MFU of the compiled runs is 6.25 % too high: under `torch.compile` the input embedding
# was no longer left out of the FLOPs. Recomputed from the model's sizes:

# %%
mfu = runs.set_index("recipe")[["tokens_per_s", "mfu_bf16_peak"]]
mfu["mfu_logged"] = windows.groupby("recipe")["mfu_logged"].median()
mfu.round({"tokens_per_s": 0, "mfu_bf16_peak": 3, "mfu_logged": 3})

# %%
plots.tokens_per_s(comparison.rates)

# %%
plots.mfu(runs)

# %% [markdown]
# ## "With warm-up FP8 brings no benefit"
#
# The published figure leaves the warm-up out.

# %%
plots.wall_after_warm_up(runs, windows)

# %% [markdown]
# With it, rowwise FP8 indeed takes longer over 1000 steps. Tensorwise FP8 does not: it had the
# shortest total time. The clock of these logs starts with training, so the start of the process is
# in neither figure.

# %%
plots.lead(comparison)

# %%
cost_by_steps(comparison, [100, 1_000, 10_000, 100_000]).round(3)

# %% [markdown]
# ## "Training loss is almost identical"
#
# One run each, without a seed: the runs do not even share their first weights, so a difference
# cannot be told from what another seed would have given, and has no interval.

# %%
plots.loss(runs, windows)

# %%
plots.loss_difference(comparison.differences, comparison.margin, comparison.baseline)

# %% [markdown]
# Most of what was trained on was padding:

# %%
share = (runs["valid_tokens_per_s"] / runs["tokens_per_s"]).set_axis(runs["recipe"])
print(
    "share of tokens that are not padding:",
    {recipe: f"{value:.1%}" for recipe, value in share.items()},
)

# %% [markdown]
# ## What the logs say

# %%
print("\n".join(answer(comparison) + details(comparison)))
