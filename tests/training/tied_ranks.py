"""One of two ranks that train a model with tied embeddings under FSDP2; started by test_tied.py.

    python -m tests.training.tied_ranks FOLDER

FOLDER holds recipe.yaml. The first rank writes result.json: each parameter's gradient beside one
process's, as the norm of their difference over the gradient's, sent in float32 and in FP8; and, in
FP8, the losses of all steps and of those after a resume from step 2.
"""

import json
import os
import shutil
import sys
from pathlib import Path

from experiments.config import recipes
from experiments.jobs.signals import Stop
from experiments.training.plan import open_data, plan
from experiments.training.trainer import Trainer

from models import device  # isort: skip
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torchtitan.distributed import ParallelDims

from models.architectures import build
from models.train_spec import parallelize


def backward(model: torch.nn.Module, tokens: torch.Tensor) -> None:
    """The loss is a sum, so that those of all rows add up."""
    F.cross_entropy(
        model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum"
    ).backward()


def gradient_errors(config, port: int) -> dict[str, float]:
    """Both models have the same weights; one sees two rows, the other one a rank."""
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    alone = build(config)
    with torch.no_grad():
        alone.init_weights()
    tokens = torch.randint(alone.model_args.vocab_size, (2, 33))
    with torch.device("meta"):
        model = build(config)
    dims = ParallelDims(dp_replicate=1, dp_shard=2, cp=1, tp=1, pp=1, ep=1, etp=1, world_size=2)
    model = parallelize(model, dims, config)
    model.to_empty(device=device.TYPE)
    with torch.no_grad():
        model.init_weights()
    set_model_state_dict(model, alone.state_dict(), options=StateDictOptions(full_state_dict=True))
    assert model.output.weight is model.tok_embeddings.weight
    rank = dist.get_rank()
    backward(model, tokens[rank : rank + 1])
    backward(alone, tokens)
    whole = {name: p.grad.full_tensor() for name, p in model.named_parameters()}
    dist.destroy_process_group()
    expected = {name: p.grad for name, p in alone.named_parameters()}
    return {name: ((whole[name] - g).norm() / g.norm()).item() for name, g in expected.items()}


def train(recipe, folder: Path, port: int) -> list[float]:
    """Losses of the steps that this process does."""
    os.environ["MASTER_PORT"] = str(port)
    recipe.config.job.dump_folder, windows = str(folder), []
    planned = plan(recipe, world_size=2)
    trainer = Trainer(planned, open_data(planned), Stop())
    trainer.on_window = windows.append
    trainer.train()
    trainer.close()
    dist.barrier()
    dist.destroy_process_group()
    return [loss for window in windows for loss in window.losses]


def main(folder: Path) -> None:
    ports = [int(port) for port in os.environ["PORTS"].split()]
    recipe = recipes.load(str(folder / "recipe.yaml"))
    config = recipe.config
    result = {"errors": gradient_errors(config, ports[0])}
    config.quantize.gradients = "float8"
    result["fp8_errors"] = gradient_errors(config, ports[1])
    result["whole"] = train(recipe, folder / "whole", ports[2])
    if os.environ["RANK"] == "0":
        shutil.copytree(folder / "whole/checkpoint/step-2", folder / "resumed/checkpoint/step-2")
    result["resumed"] = train(recipe, folder / "resumed", ports[3])
    if os.environ["RANK"] == "0":
        (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
