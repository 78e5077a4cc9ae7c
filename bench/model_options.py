"""Options that say which model's cache is meant and what its numbers are stored as, for the commands that count bytes.

A model is a name of the table or a `config.json` (`model_configs`). A dtype has the short name that engines use for it.
"""

from enum import StrEnum
from typing import Annotated

import torch
import typer


class KvDtype(StrEnum):
    """What the cache stores a number as."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"

    @property
    def torch(self) -> torch.dtype:
        """The same in torch's words."""
        return _TORCH[self]


_TORCH = {
    KvDtype.FP32: torch.float32,
    KvDtype.FP16: torch.float16,
    KvDtype.BF16: torch.bfloat16,
    KvDtype.FP8_E4M3: torch.float8_e4m3fn,
    KvDtype.FP8_E5M2: torch.float8_e5m2,
}
Model = Annotated[str, typer.Option("--model", metavar="NAME|FILE", help="A known model, or its config.json.")]
Dtype = Annotated[KvDtype, typer.Option("--kv-dtype", "--dtype", help="What the cache stores a number as.")]
