# %% [markdown]
# # Some steps in bf16, the others in FP8: what does that buy, and what does it cost?
#
# The first steps of a training change the weights most, and the last ones decide the final loss. A
# guide to FP8 training (*Turn on FP8 training*, a documentation page that is a source of this
# project) therefore knows three patterns: FP8 all the way; bf16 while the learning rate warms up,
# then FP8; and FP8, then bf16 at the end. Its code does the latter two by hand: save a checkpoint,
# and start again in the other precision.
#
# Here a run switches by itself between two steps (section `phases` of its recipe).
# Parameters and optimizer stay. A switch gives the same losses as a checkpoint that
# the other recipe resumes from, bit for bit (`extensions/phases/tests`). The five recipes
# start from the same weights and read the same batches.

# %%
from analysis import newest, plots
from analysis.answer import describe_training, list_left_out, list_loss_verdicts
from analysis.comparison import compare
from analysis.study import read_study
from extensions.phases.tables import phase_costs

comparison = compare(read_study(newest.find_runs("phases")))
print(describe_training(comparison))

# %% [markdown]
# ## What it costs
#
# Times are shares of compiled bf16's. The first switch compiles the model once more. The way back
# compiles nothing. The last column is an estimate for a GPU with FP8 units: each step takes as long
# as in the published study (one GH200, 8.05 B parameters, 8,777 and 10,898 tokens/s), without first
# step and switches.
#
# A CPU has no FP8 units, so FP8 is slower there, and its times say nothing about a GPU. Wall times
# compare only if the machine did nothing else. `results/LOG.md` says what is known of that.

# %%
phase_costs(comparison).round(2)

# %%
plots.lead(comparison)

# %% [markdown]
# ## What it buys

# %%
plots.loss_difference(comparison)

# %%
print(*list_loss_verdicts(comparison), sep="\n")

# %% [markdown]
# Runs that are left out:

# %%
print(*list_left_out(comparison) or ["none"], sep="\n")
