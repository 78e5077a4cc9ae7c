"""nano-vllm's `BlockManager` under the drivers, asked as its scheduler does.

It appends one token to one sequence at a time (`append_token`, `can_append`, `may_append`), so batches and longer
extensions are not offered. Its configuration wants blocks of 256 tokens or a multiple; with one token a block its
tables would never grow, so that is not offered.
"""

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

from pagedkv.bench.peer_imports import import_peer
from pagedkv.bench.peer_texts import Text, TextManager
from pagedkv.spec.manager import Block, Config, Feature, Name, Reason, Refused, Rows

HOW = "put a checkout of github.com/GeeeekExplorer/nano-vllm on PYTHONPATH and pip install xxhash"
MODULES = [f"nanovllm.engine.{name}" for name in ("block_manager", "sequence", "scheduler")]
(managers, sequences, schedulers), _ = import_peer(MODULES, ("flash_attn",), HOW)


def make_nano_vllm_manager(blocks: int, block_size: int) -> Any:
    """Return nano-vllm's own `BlockManager`."""
    return managers.BlockManager(blocks, block_size)


@cache
def sequence_class(block_size: int) -> Any:
    """Return nano-vllm's own `Sequence`, which has the block size as an attribute of the class."""
    return type("Sequence", (sequences.Sequence,), {"block_size": block_size})


class NanoVllmManager(TextManager):
    """`BlockManager` as a `Manager`."""

    block_sizes = (2, 3, 4)
    not_offered = frozenset({Feature.SALT, Feature.BATCHES, Feature.SEVERAL_TOKENS})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.manager = make_nano_vllm_manager(config.blocks, config.block_size)
        self.sequences: dict[Name, Any] = {}

    def begin(self, name: Name, ids: list[int]) -> Sequence[Block]:
        """Allocate a sequence."""
        sequence = sequence_class(self.config.block_size)(ids)
        hits = self.manager.can_allocate(sequence)
        self.own_calls += [f"s{name} = Sequence({ids})", f"hits = manager.can_allocate(s{name})  # {hits}"]
        if hits < 0:
            raise Refused(Reason.NO_SPACE)
        self.own_calls.append(f"manager.allocate(s{name}, hits)")
        self.manager.allocate(sequence, hits)
        self.sequences[name] = sequence
        return tuple(sequence.block_table[:hits])

    def extend(self, rows: Rows) -> None:
        """Append a token to a sequence."""
        for name, _ in rows:
            sequence, ids = self.sequences[name], self.make_up(1)
            sequence.append_token(*ids)
            if not self.manager.can_append(sequence):
                sequence.token_ids.pop()
                sequence.num_tokens -= 1
                raise Refused(Reason.NO_SPACE)
            self.own_calls += [f"s{name}.append_token({ids[0]})", f"manager.may_append(s{name})"]
            self.manager.may_append(sequence)
            self.texts[name].ids += ids

    def settle(self, name: Name, text: Text, length: int) -> None:
        """Hash the blocks that are filled, as its scheduler does after a step."""
        sequence = self.sequences[name]
        sequence.token_ids[:length] = text.ids[:length]
        sequence.num_cached_tokens, sequence.num_scheduled_tokens = text.settled, length - text.settled
        self.own_calls.append(f"manager.hash_blocks(s{name})  # tokens {text.settled} to {length - 1}")
        self.manager.hash_blocks(sequence)

    def release(self, name: Name) -> None:
        """Deallocate a sequence."""
        self.own_calls.append(f"manager.deallocate(s{name})")
        self.manager.deallocate(self.sequences.pop(name))
        del self.texts[name]

    def block_table(self, name: Name) -> Sequence[Block]:
        """Return a sequence's blocks."""
        return tuple(self.sequences[name].block_table)

    def free_blocks(self) -> Collection[Block]:
        """Return the free blocks that have no hash."""
        return [block for block in self.manager.free_block_ids if self.manager.blocks[block].hash == -1]

    def cached_blocks(self) -> Collection[Block]:
        """Return the free blocks that have one: they may be found until they are taken."""
        return [block for block in self.manager.free_block_ids if self.manager.blocks[block].hash != -1]
