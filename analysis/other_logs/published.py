"""The published project's logs (course project "FP8 Training", ETH Zurich, May 2025), read as runs.

A log has a line at step 1 and then every few steps: `time_delta` is the seconds since the line before, `loss` the last
step's, `training_tokens_percentage` the share of tokens that are not padding. It was written when training had ended.
Its MFU is recomputed: under torch.compile the logged one counts the input embedding as if it were multiplied.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from analysis.record import Run, windows_table
from analysis.summary import LayoutError, read_lines

SOURCE = "published log"
LINE = pa.schema(
    [("step", pa.int64())]
    + [(name, pa.float64()) for name in ("loss", "tokens_per_second", "training_tokens_percentage", "mfu",
                                         "learning_rate", "time_delta")]
)  # fmt: skip
_NEEDED = ("step", "loss", "tokens_per_second", "time_delta")
PEAK_BF16, PEAK_FP8 = 989e12, 1979e12  # FLOP/s, dense
PEAK_SOURCE = "NVIDIA H200 and GH200 datasheets, dense"
# Median tokens/s of the steady steps of those logs (github.com/mak2508/lsai-proj, output/data), one GH200.
TOKENS_PER_S = {
    "baseline": 8151.0,
    "baseline_compiled": 8800.0,
    "rowwise_fp8_compiled": 9315.0,
    "tensorwise_fp8_compiled": 10945.0,
}
RECIPES = {  # what the four published runs were: (float8, compiled)
    "baseline": (None, False),
    "baseline_compiled": (None, True),
    "rowwise_fp8_compiled": ("rowwise", True),
    "tensorwise_fp8_compiled": ("tensorwise", True),
}


@dataclass(frozen=True)
class Llama:
    """Sizes of a Llama with untied embeddings and a SwiGLU layer of width `ffn`."""

    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    seq_len: int

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @property
    def parameters(self) -> int:
        """Embedding, head, blocks (attention, SwiGLU, two norms) and the last norm."""
        attention = 2 * self.dim * self.head_dim * (self.heads + self.kv_heads)
        block = attention + 3 * self.dim * self.ffn + 2 * self.dim
        return 2 * self.vocabulary * self.dim + self.layers * block + self.dim


PUBLISHED = Llama(dim=4096, layers=32, heads=32, kv_heads=8, ffn=14336, vocabulary=131072, seq_len=4096)


def flops_per_token(model: Llama, causal: bool = False) -> int:
    """FLOPs of forward and backward per token: 6 (N - input embedding) + 12 layers heads head_dim seq_len.

    The published study's formula as it was meant, and models.flops' for our runs; `causal` halves the attention term.
    """
    attention = 12 * model.layers * model.heads * model.head_dim * model.seq_len
    return 6 * (model.parameters - model.vocabulary * model.dim) + (attention // 2 if causal else attention)


def read_published(path: Path) -> Run:
    """One published log. The recipe is the file's name; `warm_up_s` and `wall_s` begin with the training loop.

    Raises:
        LayoutError: the file holds no line of one.
    """
    problems: list[str] = []
    lines = read_lines(path, LINE, _NEEDED, problems)
    if not len(lines):
        raise LayoutError(f"{problems[0]}: no log of the published project, whose lines have {', '.join(_NEEDED)}")
    step, rate, seconds = (lines[name].to_numpy() for name in ("step", "tokens_per_second", "time_delta"))
    share = lines["training_tokens_percentage"].to_numpy() / 100
    # Steps since the line before, from the tokens done: right also where that line is missing.
    tokens = rate * seconds
    count = np.maximum(1, np.rint(tokens / np.median(tokens / np.diff(step, prepend=0)))).astype(int)
    recipe = re.sub(r"\W+", "_", path.stem)
    float8, compiled = RECIPES.get(recipe, (None, None))
    flops = flops_per_token(PUBLISHED)
    windows = windows_table(
        step, count, seconds, loss=lines["loss"].to_numpy(), lr=lines["learning_rate"].to_numpy(), tokens_per_s=rate,
        valid_tokens_per_s=rate * share, mfu_bf16_peak=rate * flops / PEAK_BF16, mfu_fp8_peak=rate * flops / PEAK_FP8,
        mfu_logged=lines["mfu"].to_numpy() / 100,
    )  # fmt: skip
    return Run(
        path=path,
        source=SOURCE,
        windows=windows,
        problems=problems,
        recipe=recipe,
        status="completed",
        device="NVIDIA GH200",
        device_type="cuda",
        warm_up_s=float(seconds[0]) if step[0] == 1 else None,
        wall_s=float(seconds.sum()),
        peak_bf16=PEAK_BF16,
        peak_fp8=PEAK_FP8,
        peak_source=PEAK_SOURCE,
        world_size=1,
        flops_per_token=flops,
        flops_per_token_causal=flops_per_token(PUBLISHED, causal=True),
        parameters=PUBLISHED.parameters,
        flavor="8B-published",
        float8=float8,
        compiled=compiled,
    )
