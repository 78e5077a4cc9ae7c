"""A model small enough to be known by heart: for whoever compares what the loop computes with what it should.

K and V of a position are looked up by layer, token and position; so is the query. So the dense oracle can compute any
output row from the token ids of its sequence alone, in float64 and without a cache. The next token follows from the
attention outputs of all layers, hence from all contents that were read: one wrong slot anywhere changes what is
sampled, or at least the row that it is sampled from.

`Recorder` is the model as the loop runs it; it keeps the attention outputs of each launch, for the comparison.
"""

import random
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import torch
from pagedkv.impl.model import Projection
from pagedkv.impl.storage import KvShape
from pagedkv.spec.attention import dense_attention
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LookupModel:
    """The tables of a model: by token and by position, added up. `Model` in the sense of the loop."""

    shape: KvShape
    q_heads: int
    by_token: Tensor  # [layers, vocabulary, q_heads + 2 kv_heads, D]
    by_position: Tensor  # [layers, positions, q_heads + 2 kv_heads, D]
    to_scores: Tensor  # [q_heads x D, vocabulary]

    @classmethod
    def make(cls, shape: KvShape, q_heads: int, vocabulary: int, positions: int) -> "LookupModel":
        """Draw the tables; always the same for the same sizes."""
        random = torch.Generator().manual_seed(1)
        heads = q_heads + 2 * shape.kv_heads
        by_token = torch.randn(shape.layers, vocabulary, heads, shape.head_size, generator=random)
        by_position = torch.randn(shape.layers, positions, heads, shape.head_size, generator=random)
        to_scores = torch.randn(q_heads * shape.head_size, vocabulary, generator=random)
        return cls(shape, q_heads, *(table.to(shape.dtype) for table in (by_token, by_position, to_scores)))

    def to(self, device: torch.device) -> "LookupModel":
        """Return the model on a device."""
        tables = (table.to(device) for table in (self.by_token, self.by_position, self.to_scores))
        return LookupModel(self.shape, self.q_heads, *tables)

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return self.by_token.shape[1]

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return `[tokens, 2 + q_heads x D]` float64: token, position, and what the layers add up to."""
        hidden = torch.zeros(len(tokens), 2 + len(self.to_scores), dtype=torch.float64, device=tokens.device)
        hidden[:, 0], hidden[:, 1] = tokens, positions
        return hidden

    def project(self, layer: int, hidden: Tensor) -> Projection:
        """Look up query, K and V."""
        tokens, positions = hidden[:, 0].long(), hidden[:, 1].long()
        found = self.by_token[layer, tokens] + self.by_position[layer, positions]
        key_at, value_at = self.q_heads, self.q_heads + self.shape.kv_heads
        parts = found[:, :key_at], found[:, key_at:value_at], found[:, value_at:]
        return Projection(*(part.contiguous() for part in parts))

    def mix(self, layer: int, hidden: Tensor, attention: Tensor) -> Tensor:
        """Add a layer's attention to what the layers add up to."""
        mixed = hidden.clone()
        mixed[:, 2:] += attention.flatten(1) * (layer + 1)
        return mixed

    def sample(self, hidden: Tensor, ordinals: Tensor) -> Tensor:
        """Take the token of the highest score; of several samples each goes on one token further."""
        return (self.scores(hidden).argmax(dim=1) + ordinals) % self.vocabulary

    def scores(self, hidden: Tensor) -> Tensor:
        """Return `[n, vocabulary]` float64."""
        return hidden[:, 2:] @ self.to_scores.double()

    def expected(self, tokens: list[int], start: int) -> tuple[list[Tensor], Tensor]:
        """Return what positions `start` on of a sequence of these tokens must give, by the dense oracle.

        That is each layer's attention `[positions, q_heads, D]`, and the last hidden states. Of a model on a CPU.
        """
        hidden = self.embed(torch.tensor(tokens), torch.arange(len(tokens)))
        outputs, last = [], hidden[start:]
        for layer in range(self.shape.layers):
            query, key, value = self.project(layer, hidden)
            output, _ = dense_attention(query[start:], key, value)
            last = self.mix(layer, last, output)
            outputs.append(output)
        return outputs, last


class Record(NamedTuple):
    """What a launch computed."""

    attention: list[Tensor]  # a layer each, [tokens, q_heads, D]
    sampled: Tensor


class ShareFailed(Exception):  # noqa: N818  (what happened)
    """A launch failed on purpose."""


class Recorder:
    """A model that keeps what each launch computed, in order: `records`. A share of the launches fails half-way."""

    def __init__(self, model: LookupModel, share_failed: float = 0.0, seed: int = 0) -> None:
        self.model = model
        self._share_failed = share_failed
        self._chance = random.Random(seed)
        self.q_heads = model.q_heads
        self.records: deque[Record] = deque()
        self._attention: list[Tensor] = []

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Begin a launch."""
        self._attention = []
        return self.model.embed(tokens, positions)

    def project(self, layer: int, hidden: Tensor) -> Projection:
        """As the model."""
        return self.model.project(layer, hidden)

    def mix(self, layer: int, hidden: Tensor, attention: Tensor) -> Tensor:
        """Keep a layer's attention. Raises `ShareFailed` in launches that fail: some of K and V is written then."""
        if layer == 0 and self._chance.random() < self._share_failed:
            raise ShareFailed("on purpose")
        self._attention.append(attention)
        return self.model.mix(layer, hidden, attention)

    def sample(self, hidden: Tensor, ordinals: Tensor) -> Tensor:
        """End a launch."""
        sampled = self.model.sample(hidden, ordinals)
        self.records.append(Record(self._attention, sampled))
        return sampled
