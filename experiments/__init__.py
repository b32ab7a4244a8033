"""Train recipes and compare them. A file here is a command, a folder is what commands use.

The way of `make study` to the first step of an optimizer, each file where it is first needed:

    study.py                         resolve the study, plan its runs, prepare data, start them
      jobs/command.py                arguments, requests to stop, exit codes
      config/studies.py              the study: recipes/studies/four_way.yaml
      records/files.py               folders and records (run.py): named, checked, locked, written
      models/device.py               what a machine is; gpus.py has its peaks
      config/recipes.py              a recipe: its layers of recipes/*.yaml, merged ... (each is
                                     read by yaml_with_origins.py)
      config/keys.py                 ... and validated
      training/plan.py               what a recipe asks for: model, layers in FP8, ranks, memory
      training/machine.py            the size that suits this machine; what it must have
      models/architectures.py        the model, by models/llama.py
      models/float8.py               its layers in FP8: one of scaling.py, multiplied by
                                     cpu_matmuls.py where there is no GPU
      models/flops.py                FLOPs and bytes
      corpus/tokens.py               the token file; checked by rows.py
      jobs/runner.py                 the process of each run, on its GPU
    run.py                           in each process: its recipe.yaml, with the plan
      training/attempt.py            the run from here to its end: its folder, its training
      training/trainer.py            `Trainer.train_step`, with the loader of corpus/rows.py,
                                     checkpoint.py, metrics.py, models/optimizer.py and proof.py;
                                     forward and backward are torchtitan's
"""
