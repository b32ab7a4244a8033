"""Fused projections: another arrangement of the same model, whatever the recipe does with it."""

from dataclasses import replace

import torch

from models import llama

STACKS = {
    "attention.wqkv": ("attention.wq", "attention.wk", "attention.wv"),
    "feed_forward.w13": ("feed_forward.w1", "feed_forward.w3"),
}


def initialised(fused: bool, seed: int = 0) -> llama.Llama:
    args = replace(llama.FLAVORS["cpu"], n_layers=2, max_seq_len=64, fused_projections=fused)
    with torch.device("meta"):
        model = llama.Llama(args)
    model.to_empty(device="cpu")
    torch.manual_seed(seed)
    with torch.no_grad():
        model.init_weights()
    return model


def stacked(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of an unfused model under the names of a fused one."""
    for block in ("layers.0", "layers.1"):
        for whole, parts in STACKS.items():
            rows = [tensors.pop(f"{block}.{part}.weight") for part in parts]
            tensors[f"{block}.{whole}.weight"] = torch.cat(rows)
    return tensors


def test_a_seed_draws_the_same_weights():
    fused, expected = initialised(True).state_dict(), stacked(initialised(False).state_dict())
    assert fused.keys() == expected.keys()
    assert all(torch.equal(fused[name], weight) for name, weight in expected.items())


def test_logits_and_gradients_are_the_same():
    """In float32, to its rounding: the input's gradient is summed in one product, where there were
    three and sums."""
    torch.manual_seed(1)
    tokens, labels = torch.randint(4096, (2, 2, 64))
    logits, gradients = [], []
    for fused in (False, True):
        model = initialised(fused)
        logits.append(model(tokens))
        torch.nn.functional.cross_entropy(logits[-1].flatten(0, 1), labels.flatten()).backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-5, atol=1e-5)  # logits of about 1
    expected = stacked(gradients[0])
    for name, gradient in gradients[1].items():
        assert (gradient - expected[name]).abs().max() < 1e-6 * expected[name].norm(), name
