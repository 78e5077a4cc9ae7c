"""Who takes part in `peer_speeds`: each manager with its sides, whether it is here, and what its bookkeeping weighs.

To add one: a side, a line in `CONTENDERS`, and its line in `PEERS`, which has its title, version and how to get it. A
manager is imported when it is asked whether it is here, and none before.
"""

import tracemalloc
from typing import Any, NamedTuple

import torch
from pagedkv.bench.failures import BadInput
from pagedkv.bench.manager_memory import reached
from pagedkv.bench.peer_cases import PROMPT, Evicting
from pagedkv.bench.peer_sglang_sides import MiniSglangSide, SglangSide
from pagedkv.bench.peer_sides import BLOCK_SIZE, OwnSide, TorchSide, TransformersSide
from pagedkv.bench.peer_step_cases import (
    MakeStepping,
    MiniSglangStepping,
    NanoVllmStepping,
    OwnStepping,
    TransformersStepping,
    VllmStepping,
)
from pagedkv.bench.peer_vllm_sides import NanoVllmSide, VllmSide
from pagedkv.bench.peers import PEERS, SGLANG_SCHEDULER
from pagedkv.spec.calls import said
from pagedkv.spec.quoting import one_line

OURS = "pagedkv"
NO_CACHE = "not offered: no prefix cache"
ALL_AT_ONCE = "not offered: it lets go of all that is cached at once"


class Contender(NamedTuple):
    """A manager, as a side of each case."""

    name: str  # as in `PEERS`
    side: Any  # a class that makes sides, with what it offers
    stepping: MakeStepping | None
    no_stepping: str = ""  # why there is none
    evicts_by_block: bool = True

    @property
    def title(self) -> str:
        """Return what its owners call it."""
        return self.name if self.name == OURS else PEERS[self.name].title

    def missing(self) -> str:
        """Say why it can't take part, and how to get it; empty where it can. Cost: that of importing it."""
        try:
            self.side(8, 2, 64, caching=self.side.caches[0])
        except BadInput as error:
            return f"not installed: {one_line(str(error))}"
        except ImportError as error:
            return f"not installed: {one_line(said(error))}; {PEERS[self.name].how}"
        return ""

    def version(self) -> str:
        """Return the version that is here; empty for ours."""
        return "" if self.name == OURS else PEERS[self.name].version()


CONTENDERS = (
    Contender(OURS, OwnSide, OwnStepping),
    Contender("vllm", VllmSide, VllmStepping),
    Contender("sglang", SglangSide, None, f"not driven: {SGLANG_SCHEDULER}"),
    Contender("nano_vllm", NanoVllmSide, NanoVllmStepping),
    Contender("mini_sglang", MiniSglangSide, MiniSglangStepping),
    Contender("transformers", TransformersSide, TransformersStepping, evicts_by_block=False),
    Contender("torch_paged_attention", TorchSide, None, "not offered: it has no scheduler"),
)


def bytes_a_block(contender: Contender, *, full: bool) -> int:
    """Return what one more block adds to a manager's bookkeeping while it is empty, or `full` of what is cached.

    Full of prompts of 1,024 tokens that have left and stay cached: all it needs to find them again counts, token ids
    and digests included. Measured is the difference between two pools, one twice as large as the other, each with rows
    for four sequences: what Python and numpy have allocated and not freed, and the storage of each tensor that the
    manager reaches. K and V do not count: what transformers makes for them has views that are floating-point.
    """
    few, many = (_bytes(contender.side, prompts, full=full) for prompts in (50, 100))
    return round((many - few) / (50 * PROMPT // BLOCK_SIZE))


def _bytes(make: Any, prompts: int, *, full: bool) -> int:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        if full:
            side = Evicting(make, prompts, caching=True).side
        else:
            side = make(prompts * PROMPT // BLOCK_SIZE, 4, PROMPT + BLOCK_SIZE, caching=make.caches[0])
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    tensors = [each for each in reached(side) if isinstance(each, torch.Tensor)]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    for each in tensors:
        if each.is_floating_point():
            storages.pop(each.untyped_storage().data_ptr(), None)
    return after - before + sum(storages.values())
