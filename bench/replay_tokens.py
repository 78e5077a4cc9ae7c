"""Token ids for a trace that names its contents but holds none: what a prefix cache needs to find what is equal.

Token j of prefix id i is a function of (i, j), the same wherever i stands, so two prompts have equal tokens exactly as
far as their ids are equal. What no id covers (tokens beyond them, sampled tokens where ids cover prompts alone, further
samples of a request) is told apart by request and position, and equals nothing else.

Ids are numbered first, so that up to 2^31 tokens are all distinct; beyond that numbers come round again, which makes
single tokens equal and no prefixes, since these begin with other tokens. Cost: 4 bytes and a few ns a token, asked for
in arrays. A trace without ids has no tokens: its prompts are given as counts.
"""

import numpy as np
import numpy.typing as npt
from pagedkv.bench.traces import Int64Array, Trace

TOKENS = 1 << 31

Int32Array = npt.NDArray[np.int32]


class TraceTokens:
    """The tokens of a trace's requests, by position; `are_known` is whether the trace has any ids."""

    def __init__(self, trace: Trace) -> None:
        self.are_known = bool(trace.prefix_ids.size)
        self._prompt = trace.prompt_tokens
        self._block_size = max(trace.format.prefix_block_size, 1)
        distinct, numbers = np.unique(trace.prefix_ids, return_inverse=True)
        self._numbers: Int64Array = np.append(numbers.astype(np.int64), 0)  # one more, for whoever looks beyond
        self._starts = trace.prefix_starts
        covered = np.diff(trace.prefix_starts) * self._block_size
        self._covered: Int64Array = (
            covered if trace.format.prefix_covers_output else np.minimum(covered, trace.prompt_tokens)
        )
        lengths = trace.prompt_tokens + trace.output_tokens
        self._own: Int64Array = distinct.size * self._block_size + np.cumsum(lengths) - lengths
        self._all_own = int(lengths.sum())

    def prompt(self, request: int) -> Int32Array:
        """Return the tokens of a request's prompt: what `at` gives for its positions, made a block at a time."""
        length, covered = self._prompt.item(request), self._covered.item(request)
        numbers = self._numbers[self._starts.item(request) : self._starts.item(request + 1), None]
        shared = (numbers * self._block_size + np.arange(self._block_size)).ravel()[: min(covered, length)]
        own = np.arange(shared.size, length) + self._own.item(request)
        return (np.concatenate((shared, own)) % TOKENS).astype(np.int32)

    def at(self, requests: Int64Array, positions: Int64Array, samples: Int64Array) -> Int32Array:
        """Return a token for each (request, position), of its sample of that number; arrays of one length."""
        index, offset = np.divmod(positions, self._block_size)
        covered = (positions < self._covered[requests]) & (samples == 0)
        entries = np.where(covered, self._starts[requests] + index, -1)
        shared = self._numbers[entries] * self._block_size + offset
        own = self._own[requests] + positions + samples * self._all_own
        return (np.where(covered, shared, own) % TOKENS).astype(np.int32)
