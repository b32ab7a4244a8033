"""Train recipes and compare them. A file here is a command, a folder is what commands use.

The way of `make study` to the first step of an optimizer, in the order of the files:

    study.py                         resolve the study, plan its runs, prepare data, start them
      jobs/command.py                arguments, requests to stop, exit codes
      config/studies.py              the study: recipes/studies/four_way.yaml
      config/recipes.py              a recipe: its layers of recipes/*.yaml, merged ... (each is
                                     read by yaml_with_origins.py)
      config/keys.py, rules.py       ... and validated
      training/plan.py               what a recipe asks for: model, layers in FP8, ranks, memory
      training/machine.py            the size that suits this machine; what it must have
      models/architectures.py        the model, by models/llama.py; what a machine is: device.py
      models/float8.py, flops.py     the plan's layers in FP8, FLOPs and bytes
      corpus/tokens.py               the token file, of documents.py; checked by rows.py
      records/files.py               folders and records: named, checked, locked, written
      jobs/runner.py                 GPUs for runs; each is shown by screen.py, within a budget.py
      jobs/ranks.py                  the processes of a run, and how each knows which one it is
    run.py                           in each process: the recipe's plan and token file again
      training/attempt.py            the run from here to its end
      training/run_directory.py      its folder, and the checkpoint that it may go on from
      training/trainer.py            `Trainer.train_step`, with the loader of corpus/rows.py,
                                     metrics.py, proof.py and models/optimizer.py
"""
