# %% [markdown]
# # The notebooks
#
# A notebook's outputs are of runs in `results/` until you choose Run, Run All Cells. Then they are
# of your runs, where the last column names some. `make lab RUNS=folder` chooses a study, and
# `make lab RUNS=kept` the runs in `results/`.
#
# `make lab` opens copies in the folder `lab/`, which git ignores: change them as you like. Delete a
# copy to get the project's notebook again.

# %%
from IPython.display import Markdown

from analysis.notebook_index import write_index

Markdown(write_index())
