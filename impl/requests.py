"""What a scheduler is asked for: requests, and the limits within which it serves them.

A request is a prompt, how many tokens to sample at most, and how many samples to take of it. The prompt is token ids,
which prefix sharing needs, or only their number, which is all that a replay of a trace has. A request that no empty
pool could serve is refused as it is submitted (R-CAP-3), so what waits can always be served in the end: its last
sampled token is never written, so a sample holds prompt + outputs - 1 positions when it is done, and the samples are
counted as if they shared nothing.

`Live` is the scheduler's own record of a request that has not left; what changes with every token lies in arrays
(`samples`), not here. Its *rank* is its place among all: priority first, if the policy goes by it, then the order of
submission. Nothing changes it, so a preempted request comes back before whoever came after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

import numpy as np

from . import arguments
from .arguments import Integers, integer, shown
from .arithmetic import blocks_needed
from .arrays import Int32Array, frozen
from .refusals import BadCount, Empty, InvalidArgument, TooLong

Policy = Literal["fcfs", "priority"]

LOWEST_PRIORITY = 255
LARGEST_LIMIT = 2**53  # whatever is added to it fits into 64 bits
_RANKS_A_PRIORITY = 2**54  # 256 of them fit into 63 bits


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A prompt to be continued: `samples` times, by at most `outputs` tokens each.

    `prompt` is token ids (int32, or any integers from 0 to 2^31 - 1) or their number; `priority` is 0 (first) to 255,
    and is looked at by the policy "priority" alone; requests of different `salt` never share a block.
    """

    id: int
    prompt: Integers | int
    outputs: int
    samples: int = 1
    priority: int = 0
    salt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one step may hold, and by which rules.

    `max_tokens_per_step` positions are written by one launch at most, and `max_running` sequences run. `steps_ahead`
    launches may be in flight, 1 or 2. A request is admitted beside others only if `watermark_blocks` stay available.
    `prefix_cache` lets requests with token ids share the blocks of equal prefixes. Errors: `InvalidArgument`.
    """

    max_tokens_per_step: int = 2048
    max_running: int = 256
    steps_ahead: int = 1
    watermark_blocks: int = 0
    policy: Policy = "fcfs"
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        least_and_most = {
            "max_tokens_per_step": (1, LARGEST_LIMIT),
            "max_running": (1, LARGEST_LIMIT),
            "steps_ahead": (1, 2),
            "watermark_blocks": (0, LARGEST_LIMIT),
        }
        for name, bounds in least_and_most.items():  # kept as Python's: a numpy uint32 could not fall below 0
            object.__setattr__(self, name, integer(name, getattr(self, name), *bounds))
        if self.policy not in ("fcfs", "priority"):
            raise InvalidArgument(f"the policy must be fcfs or priority, not {shown(self.policy)}")
        if not isinstance(self.prefix_cache, bool):
            raise InvalidArgument(f"prefix_cache must be True or False, not {shown(self.prefix_cache)}")


@dataclass(slots=True, eq=False)
class Live:
    """A request that has not left."""

    id: int
    rank: int  # lower is served first; no two are equal
    prompt: Int32Array | None  # None where only its length is known, or nothing is shared
    given_ids: Int32Array | None  # the prompt as it is computed; None where only its length is known
    prompt_tokens: int
    outputs: int
    salt: int
    names: range  # of its samples' sequences
    slots: list[int] = field(default_factory=list)  # of its samples that are not done; none before its first admission
    running: bool = False
    fresh: bool = True  # no token is sampled: one sequence is enough until its prompt is launched
    need: int = 0  # blocks that it lacked when that was last looked at
    need_seen: int = 0  # how many blocks had been published by then

    @property
    def sequences(self) -> int:
        """How many sequences it has when it runs: its samples that are not done."""
        return len(self.slots) or len(self.names)

    def clone(self) -> "Live":
        """Return an independent copy."""
        shared = (
            self.id,
            self.rank,
            self.prompt,
            self.given_ids,
            self.prompt_tokens,
            self.outputs,
            self.salt,
            self.names,
        )
        return Live(*shared, self.slots.copy(), self.running, self.fresh, self.need, self.need_seen)


def accepted(request: Request, limits: Limits, blocks: int, block_size: int, names_from: int) -> Live:
    """Return a request as one that waits, its sequences' names counted up from `names_from`; or refuse it.

    Refused: `InvalidArgument`, `Empty`, `BadCount`, `TooLong`.
    """
    request_id = integer("a request's id", request.id)
    outputs, samples = integer("outputs", request.outputs), integer("samples", request.samples)
    priority, salt = integer("a priority", request.priority), integer("a salt", request.salt)
    prompt = request.prompt
    ids = arguments.token_ids(prompt) if isinstance(prompt, np.ndarray | Sequence) else None
    length = integer("the number of prompt tokens", cast("int", prompt)) if ids is None else ids.size
    if length < 1:
        raise Empty(f"request {request.id} must have a prompt of at least 1 token, not {shown(length)}")
    if outputs < 1 or samples < 1:
        raise BadCount(f"request {request.id} must sample at least 1 token, of at least 1 sample")
    if samples > limits.max_running:
        raise BadCount(f"request {request.id} has {shown(samples)} samples and {limits.max_running} sequences may run")
    if not 0 <= priority <= LOWEST_PRIORITY:
        raise BadCount(f"a priority is 0 (first) to {LOWEST_PRIORITY}, not {shown(priority)}")
    need = samples * blocks_needed(length + outputs - 1, block_size)
    if need > blocks:
        raise TooLong(f"request {request.id} may need {shown(need)} blocks and the whole pool has {blocks}")
    names = range(names_from, names_from + samples)
    rank = names_from + (priority * _RANKS_A_PRIORITY if limits.policy == "priority" else 0)
    kept = None if ids is None else frozen(ids.copy())
    return Live(request_id, rank, kept if limits.prefix_cache else None, kept, length, outputs, salt, names)
