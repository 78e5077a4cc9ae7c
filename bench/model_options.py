"""Options that say which model's cache is meant and what its numbers are stored as, for the commands that count bytes.

A model is a name of the table or a `config.json` (`model_configs`). A dtype has the short name that engines use for it.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch


class KvDtype(StrEnum):
    """What the cache stores a number as."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"

    @property
    def torch(self) -> "torch.dtype":
        """The same in torch's words."""
        import torch  # noqa: PLC0415  (it takes seconds)

        dtype: torch.dtype = getattr(torch, _NAMES[self])
        return dtype


_NAMES = {
    KvDtype.FP32: "float32",
    KvDtype.FP16: "float16",
    KvDtype.BF16: "bfloat16",
    KvDtype.FP8_E4M3: "float8_e4m3fn",
    KvDtype.FP8_E5M2: "float8_e5m2",
}
Model = Annotated[str, typer.Option("--model", metavar="NAME|FILE", help="A known model, or its config.json.")]
Dtype = Annotated[KvDtype, typer.Option("--kv-dtype", "--dtype", help="What the cache stores a number as.")]
