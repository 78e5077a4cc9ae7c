"""What the loop asks of a model: all that lies between token ids and the next ones, but attention over the cache.

A transformer as the loop sees it is `embed`, then for each layer `project` and `mix` with attention in between, then
`sample`. The loop appends K and V and attends; the model does the rest (norms, projections, rotary embedding by the
positions it is given, MLP, head, sampler). Its functions are called as work of the device's launch queue, in order, one
launch at a time: on a CPU from the launch thread. They must queue device work and not wait for it, and hold on to
nothing of a launch beyond it. What they raise fails the launch (`DeviceFailed`), and so does a sample that is no token
id, 0 to 2^31 - 1; its requests are computed anew.

The tensors of a launch are its new positions, row by row: `[tokens]`. Hidden states are the model's own business, one
tensor whose first axis is the tokens.
"""

from typing import NamedTuple, Protocol

from torch import Tensor


class Projection(NamedTuple):
    """What attention takes of each new position: query `[tokens, q_heads, D]`, K and V `[tokens, kv_heads, D]`."""

    query: Tensor
    key: Tensor
    value: Tensor


class Model(Protocol):
    """A decoder whose attention is elsewhere."""

    @property
    def q_heads(self) -> int:
        """Query heads on this rank; layers, KV heads and head size are the storage's."""

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return the first hidden states of tokens `[tokens]` int64 at positions `[tokens]` int64."""

    def project(self, layer: int, hidden: Tensor) -> Projection:
        """Return a layer's query, K and V."""

    def mix(self, layer: int, hidden: Tensor, attention: Tensor) -> Tensor:
        """Return the hidden states behind a layer, from those before it and its attention `[tokens, q_heads, D]`."""

    def sample(self, hidden: Tensor, ordinals: Tensor) -> Tensor:
        """Return the next token `[n]` int64 for each of n hidden states.

        Where several samples are taken of one prompt, its state stands there several times, with ordinals `[n]` int64
        0, 1, 2 and so on.
        """
