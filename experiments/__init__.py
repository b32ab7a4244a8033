"""Train recipes and compare them. A file here is a command, a folder is what commands use.

The files from `make study` to the first step of an optimizer, in the order of their use:

    study.py                         resolve the study, plan its runs, prepare data, start them
      jobs/command.py                arguments, requests to stop, exit codes
      config/yaml_with_origins.py    recipes/studies/four_way.yaml, found by its name, and read
      records/files.py               folders: named, checked, locked
      records/run.py                 what is in them
      models/device.py               the CPU or the GPU; gpus.py has peaks, cpu_matmuls.py a CPU's
                                     kernels, host_memory.py what a process may use
      training/machine.py            what this machine must have, as nvidia_smi.py, visible_gpus.py
                                     and compilation.py find it
      training/sizes.py              the size that suits its memory
      config/recipes.py              a recipe: its files of recipes/*.yaml, merged ...
      config/keys.py                 ... and validated
      training/plan.py               what a recipe asks for: model, layers in FP8, memory
      models/architectures.py        the model
      models/flops.py                its FLOPs and bytes
      models/float8.py               its layers in FP8, by a scaling of scaling.py
      corpus/rows.py                 its data, from the token file of tokens.py: documents.py has
                                     the texts, tokenizer.py encodes them
      jobs/durations.py              how long its runs will take
      jobs/runner.py                 the process of each run, on its GPU
    run.py                           in each process: its recipe.yaml, with the plan
      training/attempt.py            the run from here to its end: its folder, its training;
                                     places.py says where
      training/trainer.py            `Trainer.train_step`, with checkpoint.py, metrics.py and
                                     proof.py; forward and backward are torchtitan's
"""
