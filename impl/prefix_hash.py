"""The hash of a prefix: linear, so that the hashes of all blocks of a prompt are a product and a running sum.

A block's tokens t are summed up with one random 64-bit key each, v = sum of key x t (two tokens as one number where the
block size is even), and a prefix's hash is its root's, plus the sum of multiplier x v over its blocks, plus an addend,
with one random multiplier and addend a depth: all modulo 2**64, as numpy's integers are. Multilinear hashing is
universal (Carter and Wegman, 1979; Lemire and Kaser, 2014): while the keys, which are drawn anew for each cache, stay
secret, nobody can choose two prefixes that meet, and by chance two meet once in 2**32 tries at worst. Nothing rests on
it: see `prefix_index`.

Cost: O(tokens), 4 us for 1,024 of them; 16 bytes a block of the longest prefix so far. Considered: chaining block by
block, each hash from the one before (no two at a time); a cryptographic hash (a call a block, ten times the cost).
"""

import secrets

import numpy as np

from .arrays import IndexArray, Int32Array, Int64Array

FEWEST_DEPTHS = 64


class PrefixHash:
    """Hashes of prefixes under secret keys: of roots, of pages in a row, of several such rows.

    A page is the tokens of a full block, int32 [B]. A `PrefixHash` may be shared: it only ever grows.
    """

    __slots__ = ("_addends", "_keys", "_multipliers", "_paired", "_salt_key")

    def __init__(self, block_size: int) -> None:
        self._paired = block_size % 2 == 0
        self._keys = _random(block_size // 2 if self._paired else block_size)
        self._multipliers, self._addends = _random(FEWEST_DEPTHS), _random(FEWEST_DEPTHS)
        self._salt_key = _random(1).item() | 1

    def root(self, salt: int) -> int:
        """Return what the hashes of a salt's prefixes begin with. O(1)."""
        return _wrapped(salt * self._salt_key) if salt else 0

    def chain(self, pages: Int32Array, before: int, depth: int = 0) -> Int64Array:
        """Return the hash of the prefix that ends with each of these pages [n, B], one behind the other.

        They stand behind `depth` pages whose hash is `before`, or behind a root. O(tokens).
        """
        end = depth + len(pages)
        self._have(end)
        sums = self._sums(pages)
        sums *= self._multipliers[depth:end]
        sums.cumsum(out=sums)
        sums += self._addends[depth:end]
        base = _wrapped(before - self._addends.item(depth - 1)) if depth else before
        if base:
            sums += base
        return sums

    def chains(self, pages: Int32Array, depths: Int64Array, before: Int64Array, starts: IndexArray) -> Int64Array:
        """Do the same for rows of pages, which begin at `starts`, behind the hashes `before`. O(tokens)."""
        self._have(int(depths.max()) + 1)
        steps = self._sums(pages) * self._multipliers[depths]
        sums = steps.cumsum()
        first = depths[starts]
        base = before + steps[starts] - sums[starts] - self._addends[first - 1] * (first > 0)
        counts = np.diff(starts, append=depths.size)
        hashes: Int64Array = sums + self._addends[depths] + base.repeat(counts)
        return hashes

    def _sums(self, pages: Int32Array) -> Int64Array:
        """Return v of each page, [n, B]."""
        words = pages.view(np.int64) if self._paired else pages
        sums: Int64Array = words.dot(self._keys)
        return sums

    def _have(self, depths: int) -> None:
        """Have multipliers and addends for prefixes of so many pages."""
        have = self._addends.size
        if depths > have:
            more = max(depths, 2 * have) - have
            self._multipliers = np.concatenate((self._multipliers, _random(more)))
            self._addends = np.concatenate((self._addends, _random(more)))


def _random(count: int) -> Int64Array:
    """Return random 64-bit integers that nobody can guess."""
    return np.frombuffer(secrets.token_bytes(8 * count), np.int64)


def _wrapped(number: int) -> int:
    """Return a number modulo 2**64, as numpy's 64-bit integers have it."""
    return (number + 2**63) % 2**64 - 2**63
