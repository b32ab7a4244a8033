# %% [markdown]
# # The published study, read again
#
# Four runs on one GH200 of the Alps cluster, May 2025 (A. Khan, *LSAI Project Feature: FP8
# Training*, ETH Zurich; code and logs: github.com/mak2508/lsai-proj, `output/data`): 8.05 B
# parameters, sequence 4096, batch 1, 1000 steps. The report drew three conclusions from four plots.
# Its own logs contradict two of them.
#
# The logs are not part of this project. Fetch them into `published_logs`, or name their folder:
# `PUBLISHED_LOGS=folder make lab`.

# %%
import pandas as pd

from analysis import plots
from analysis.answer import write_answer, write_details, write_limits
from analysis.comparison import compare
from analysis.tables import cost_table, measure_runs
from extensions.published.logs import read_published

comparison = compare(read_published())
runs = comparison.study.runs
print(*write_answer(comparison), *write_limits(comparison), sep="\n")

# %% [markdown]
# ## "With warm-up FP8 brings no benefit"
#
# The published figure leaves the first step out:

# %%
plots.lead(comparison, False)

# %% [markdown]
# With the first step, rowwise FP8 indeed takes longer over 1000 steps. Tensorwise FP8 had the
# shortest total time. The clock of these logs starts with training, so the start of the process is
# in neither figure.

# %%
plots.lead(comparison)

# %% [markdown]
# Hours of a run of N steps:

# %%
cost_table(comparison, [100, 1_000, 10_000, 100_000]).round(3)

# %% [markdown]
# ## Speed

# %%
plots.tokens_per_second(comparison)

# %% [markdown]
# The published MFU of the compiled runs is 6.25 % too high. Under `torch.compile` the input
# embedding was no longer left out of the FLOPs. Recomputed from the model's sizes
# (`mfu_bf16_peak`), and as logged, in percent. Most of what was trained on was padding: the last
# column is the percentage of tokens that are not.

# %%
lines = pd.concat({run.recipe: pd.read_json(run.path, lines=True) for run in runs})
logged = lines.groupby(level=0).agg({"mfu": "median", "training_tokens_percentage": "mean"})
measured = measure_runs(comparison).set_index("recipe")[["tokens_per_s", "mfu_bf16_peak"]]
measured.join(logged).round(3)

# %% [markdown]
# ## "Training loss is almost identical"
#
# There is one run of each recipe, without a seed. The runs do not share their first weights. So a
# difference may be as large as another seed's, and has no interval.

# %%
plots.loss_difference(comparison)

# %%
plots.loss(comparison)

# %% [markdown]
# ## Evidence

# %%
print(*write_details(comparison), sep="\n")
