"""Two ranks compare gradients of a model with tied embeddings under FSDP2 with those of one
process; started by test_tied.py.

    python -m tests.training.tied_ranks RESULT.JSON

The first rank writes, for gradients sent in float32 and in FP8, the norm of each parameter's
difference over the gradient's. Ranks are forks of one process, which imports torch once.
"""

import json
import os
import sys
from pathlib import Path

from experiments.config import recipes

from models import device  # before torchtitan  # isort: skip
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torchtitan.distributed import ParallelDims

from models.architectures import build
from models.train_spec import parallelize
from tests.training.test_tied import TIED


def backward(model: torch.nn.Module, tokens: torch.Tensor) -> None:
    """The loss is a sum, so that those of all rows add up."""
    logits = model(tokens[:, :-1]).flatten(0, 1)
    F.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="sum").backward()


def gradient_errors(config, rank: int) -> dict[str, float]:
    """Both models have the same weights; one sees two rows, the other one a rank."""
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
    backward(model, tokens[rank : rank + 1])
    backward(alone, tokens)
    errors = {}
    for (name, parameter), other in zip(model.named_parameters(), alone.parameters(), strict=True):
        difference = parameter.grad.full_tensor() - other.grad
        errors[name] = (difference.norm() / other.grad.norm()).item()
    return errors


def main(result: Path, rank: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{result}.ranks", rank=rank, world_size=2)
    config = recipes.load("baseline", ["cpu"], TIED).config
    errors = {"float32": gradient_errors(config, rank)}
    config.quantize.gradients = "float8"
    errors["float8"] = gradient_errors(config, rank)
    if rank == 0:
        result.write_text(json.dumps(errors))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    child = os.fork()
    main(Path(sys.argv[1]), rank=int(child == 0))
    if child:
        os.waitpid(child, 0)
