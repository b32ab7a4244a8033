# %% [markdown]
# # Four ways to train one Llama
#
# bf16 eager, bf16 compiled, FP8 with a scale per row, FP8 with a scale per tensor. All start from
# the same weights and read the same batches.
#
# This notebook shows your newest study of a GPU under `runs/`. Without one it shows a kept study of
# a GPU: the measurements that a course project published for one GH200. What they lack stands in
# `results/gh200_2025-05_published/README.md`. A study of a CPU is at the end. For another study:
# `RUNS=folder make lab`.

# %%
from analysis import newest, plots
from analysis.answer import write_answer, write_details, write_limits
from analysis.comparison import compare
from analysis.study import read_study
from analysis.tables import recipe_table

folder = newest.find_runs(device="cuda")
comparison = compare(read_study(folder))
print(*write_answer(comparison), *write_limits(comparison), sep="\n")

# %%
recipe_table(comparison)

# %% [markdown]
# ## Loss
#
# The four curves should lie on each other.

# %%
plots.loss(comparison)

# %% [markdown]
# ## Tokens per second
#
# By the mean steady step: all steps after the first ten. An interval takes several runs of a
# recipe.

# %%
plots.tokens_per_second(comparison)

# %% [markdown]
# ## Model FLOPs utilisation (MFU)
#
# The model's FLOP/s over the GPU's bf16 peak, also where matmuls run in FP8.

# %%
plots.mfu(comparison)

# %% [markdown]
# ## Wall time after the first step

# %%
plots.time_after_first_step(comparison)

# %% [markdown]
# ## The break-even step
#
# The figure above leaves out the first step, in which a recipe compiles. FP8 compiles longer than
# bf16. With the first step, the lead in wall time shows whether FP8 has made up for that:

# %%
plots.lead(comparison)

# %% [markdown]
# The published runs compiled the whole model as one graph. The recipes of this project compile it
# block by block, which takes less time (`extensions/published/README.md` has what others measured).
# `--overlay as_published` goes back to one graph.
#
# ## The difference of the loss
#
# Runs with the same seed share weights and batches, so their difference shows far smaller effects
# than the curves. Differences in the grey margin, 0.25 % of the loss, count as the same. The
# published runs have no seed: for them the difference has no interval.

# %%
plots.loss_difference(comparison)

# %% [markdown]
# ## Memory

# %%
plots.memory(comparison)

# %% [markdown]
# ## Evidence

# %%
print(*write_details(comparison), sep="\n")

# %% [markdown]
# ## On a CPU
#
# A CPU has no FP8 units, so its speeds say nothing about FP8. Its runs show the method, a proof of
# what ran in FP8, and the loss of a small model. This is your newest study of a CPU, or a kept one.

# %%
cpu_folder = newest.find_runs(device="cpu")
on_cpu = compare(read_study(cpu_folder))
if cpu_folder != folder:
    print(*write_answer(on_cpu), *write_limits(on_cpu), sep="\n")

# %%
recipe_table(on_cpu)

# %%
plots.loss_difference(on_cpu)
