"""What the kernels are given: one layer's paged cache, and how its scores are made.

The classes are views: they hold tensors and never copy them. Everything a kernel knows about memory (block size, heads
of this rank, head size, strides) is read here, from the tensors themselves, by one set of properties, so that sizing,
checks and kernels cannot disagree (R-MEM-1, R-KRN-5). Two layouts are one: a layout only names which axis is which, and
`position_major` turns HND into NHD by a permuted view.

Considered: passing a dozen loose tensors through every call, as most engines do. It led there to scales that were
passed by position into the wrong parameters (flashinfer#1023) and to head counts of Q used for K (flashinfer#16).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Layout = Literal["NHD", "HND"]

FLOAT8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
COMPUTE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class InvalidKernelArgument(ValueError):  # noqa: N818  (a refusal, named like those of the cache manager)
    """An argument cannot be used; nothing was launched and nothing was changed. The message says what and why."""


def position_major(tensor: Tensor, layout: Layout) -> Tensor:
    """View the last four axes as `[blocks, B, kv_heads, D]`, whatever the layout; leading axes stay. No copy, O(1)."""
    return tensor if layout == "NHD" else tensor.transpose(-3, -2)


@dataclass(frozen=True, slots=True)
class PagedCache:
    """One layer's K and V in blocks, as strided views of whatever holds them.

    `key` and `value` are `[blocks, B, kv_heads, D]` (NHD) or `[blocks, kv_heads, B, D]` (HND), block 0 the null block
    that nobody owns; any strides but the last, which is 1. `key_scale` and `value_scale` are float32 tensors `[1]` or
    `[kv_heads]`: a stored number times its scale is the number meant (R-KRN-7); needed in practice for fp8 alone.
    """

    key: Tensor
    value: Tensor
    layout: Layout = "NHD"
    key_scale: Tensor | None = None
    value_scale: Tensor | None = None

    @property
    def keys(self) -> Tensor:
        """K as `[blocks, B, kv_heads, D]`."""
        return position_major(self.key, self.layout)

    @property
    def values(self) -> Tensor:
        """V as `[blocks, B, kv_heads, D]`."""
        return position_major(self.value, self.layout)

    @property
    def blocks(self) -> int:
        """How many blocks there are, the null block among them."""
        return self.key.shape[0]

    @property
    def block_size(self) -> int:
        """Positions a block."""
        return self.keys.shape[1]

    @property
    def kv_heads(self) -> int:
        """KV heads on this rank."""
        return self.keys.shape[2]

    @property
    def head_size(self) -> int:
        """Numbers a head."""
        return self.key.shape[3]


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a score is made from a query and a key; the formula is in `pagedkv.spec.attention`.

    `scale`: 1 / sqrt(D) unless given. `soft_cap`: cap * tanh(score / cap) (Gemma 2). `alibi_slopes` and `sinks`:
    float32 `[q_heads]` (Press et al., 2021; gpt-oss). A sink takes weight and gives no value, once a query and head.
    """

    scale: float | None = None
    soft_cap: float | None = None
    alibi_slopes: Tensor | None = None
    sinks: Tensor | None = None


PLAIN = Scoring()
