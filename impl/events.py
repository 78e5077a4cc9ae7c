"""KV events: what a router needs to know of a prefix index, to send a prompt where its prefix lies.

A block that is published is `Stored`, one that is evicted `Removed`, and `Cleared` says that all are gone. A block is
named by a digest of its prefix, which is the same in every process, so that routers compare what several caches hold
and compute what a prompt would hit. Exactly:

    root of salt 0    sha256("pagedkv" + weights epoch)               what anybody may know
    root of a salt    hmac-sha256(secret, salt + weights epoch)       secret: 32 random bytes a cache
    digest of a block sha256(digest of its parent, or its root, + token ids)

with numbers as 8 bytes and token ids as 4 bytes each, little endian, signed. A tenant with a salt of its own learns
nothing of others from events, and others nothing of it: without the secret no digest can be guessed or recognised.

Guarantees: replaying the events gives the digests of the index at any time, since a key has one block: none is removed
while a copy of it can still be hit, and a merge is no event. Cost: one sha256 a block that is published, and memory for
events until they are fetched; nothing where events are off. Considered: the index's own hash (its keys are secret and
differ from process to process, and it is no commitment). Source: KV cache events of vLLM and NVIDIA Dynamo.
"""

import hashlib
import hmac
import secrets
from typing import NamedTuple, Self

from .arrays import IndexArray, Int32Array

PUBLIC = b"pagedkv"


class Stored(NamedTuple):
    """A block is published."""

    digest: bytes
    parent: bytes  # digest of the block before it, or of its root
    tokens: tuple[int, ...] | None  # its token ids, if they were asked for


class Removed(NamedTuple):
    """A block is published no more: it was evicted."""

    digest: bytes


class Cleared(NamedTuple):
    """Nothing is published any more, and the weights epoch is this one."""

    weights: int


Event = Stored | Removed | Cleared


class EventLog:
    """Events that nobody has fetched yet, and the digests of all published blocks."""

    __slots__ = ("_digests", "_events", "_secret", "_weights", "_with_tokens")

    def __init__(self, *, with_tokens: bool) -> None:
        self._with_tokens = with_tokens
        self._secret = secrets.token_bytes(32)
        self._weights = 0
        self._digests: dict[int, bytes] = {}
        self._events: list[Event] = []

    def root(self, salt: int) -> bytes:
        """Return the digest that the prefixes of a salt begin with."""
        weights = _bytes(self._weights)
        if salt:
            return hmac.digest(self._secret, _bytes(salt) + weights, "sha256")
        return hashlib.sha256(PUBLIC + weights).digest()

    def stored(self, ids: IndexArray, parents: IndexArray, salt: int, pages: Int32Array) -> None:
        """Note blocks that are published, parents before children; the salt counts for those without a parent."""
        for block, parent, page in zip(ids.tolist(), parents.tolist(), pages, strict=True):
            before = self._digests[parent] if parent else self.root(salt)
            digest = self._digests[block] = hashlib.sha256(before + page.astype("<i4").tobytes()).digest()
            self._events.append(Stored(digest, before, tuple(page.tolist()) if self._with_tokens else None))

    def removed(self, ids: IndexArray) -> None:
        """Note blocks that are evicted."""
        self._events += [Removed(self._digests.pop(block)) for block in ids.tolist()]

    def cleared(self) -> None:
        """Note that the weights have changed."""
        self._weights += 1
        self._digests.clear()
        self._events.append(Cleared(self._weights))

    def fetch(self) -> list[Event]:
        """Return all events since the last call, oldest first."""
        events, self._events = self._events, []
        return events

    def digests(self) -> dict[int, bytes]:
        """Return the digest of each published block."""
        return self._digests.copy()

    def clone(self) -> Self:
        """Return an independent copy with the same secret."""
        twin = object.__new__(type(self))
        twin._with_tokens, twin._secret, twin._weights = self._with_tokens, self._secret, self._weights
        twin._digests, twin._events = self._digests.copy(), self._events.copy()
        return twin


def _bytes(number: int) -> bytes:
    return number.to_bytes(8, "little", signed=True)
