# %% [markdown]
# # Four ways to train one Llama
#
# bf16 eager, bf16 compiled, FP8 with a scale per row, FP8 with a scale per tensor. All start from
# the same weights and read the same batches.
#
# **Found**: on a CPU all four end at the same loss, within 0.003; their speed needs a GPU.

# %%
from analysis import newest, plots
from analysis.answer import write_answer, write_details, write_limits
from analysis.comparison import compare
from analysis.study import read_study
from analysis.tables import recipe_table

comparison = compare(read_study(newest.find_runs()))
print(*write_answer(comparison), *write_limits(comparison), sep="\n")

# %%
recipe_table(comparison)

# %% [markdown]
# ## The break-even step
#
# FP8 compiles longer than bf16. Wall time with the first step (compile) shows whether FP8 has made
# up for that:

# %%
plots.lead(comparison)

# %% [markdown]
# The published study leaves the first step out:

# %%
plots.lead(comparison, False)

# %% [markdown]
# ## Speed
#
# Tokens per second come from the mean steady step: all steps after the first ten. The interval
# comes from several runs of a recipe. Model FLOPs utilisation (MFU) divides by the bf16 peak, also
# where matmuls run in FP8. A CPU has no datasheet's peak, so it has no MFU.

# %%
plots.tokens_per_second(comparison)

# %% [markdown]
# ## Loss
#
# Runs with the same seed share weights and batches, so their difference shows far smaller effects
# than the curves. Differences in the grey margin, 0.25 % of the loss, count as the same.

# %%
plots.loss_difference(comparison)

# %%
plots.loss(comparison)

# %% [markdown]
# ## Memory

# %%
plots.memory(comparison)

# %% [markdown]
# ## Evidence

# %%
print(*write_details(comparison), sep="\n")
