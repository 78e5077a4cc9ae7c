"""A memory sanitizer for interpreted Triton kernels.

It stands between the kernel and memory, and raises `MemoryFault` where

- an active lane of a load or store lies outside the storage of every tensor that the launch was given;
- two programs of one launch store to one address. The interpreter runs programs one after another, so this race would
  not show in results.

Masked-off lanes may point anywhere, as on a GPU. Considered: `compute-sanitizer` (needs a GPU), guard pages around
tensors (see only accesses far outside, and not one into a neighbour).
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from triton.runtime import interpreter
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder


class MemoryFault(Exception):  # noqa: N818  (a fault, in the words of memory)
    """A kernel touched memory that is not its own."""


class _Watch:
    """What one launch may touch, and who has written where."""

    def __init__(self) -> None:
        self.spans: set[tuple[int, int]] = set()
        self.writers: dict[int, tuple[int, ...]] = {}

    def check(self, what: str, pointers: Any, mask: Any) -> npt.NDArray[np.int64]:
        """Return the active addresses, all of them inside some tensor."""
        shape = np.broadcast_shapes(pointers.data.shape, mask.data.shape)
        active = np.broadcast_to(pointers.data, shape)[np.broadcast_to(mask.data, shape).astype(bool)]
        addresses: npt.NDArray[np.int64] = active.ravel().astype(np.int64)
        if not addresses.size:
            return addresses
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        spans = np.array(sorted(self.spans), dtype=np.int64).reshape(-1, 2)
        # Storages do not overlap, so the last one that starts at or before an address is the only candidate.
        owner = np.searchsorted(spans[:, 0], addresses, side="right") - 1
        bad = (owner < 0) | (addresses + size > spans[np.maximum(owner, 0), 1])
        if bad.any():
            raise MemoryFault(f"{what}: {int(bad.sum())} of {bad.size} lanes outside every tensor argument")
        return addresses

    def record(self, addresses: npt.NDArray[np.int64], program: tuple[int, ...]) -> None:
        """Note a store by a program; two writers of one address race."""
        for address in addresses.tolist():
            if self.writers.setdefault(address, program) != program:
                raise MemoryFault(f"store: programs {self.writers[address]} and {program} write one address")


@contextlib.contextmanager
def watching() -> Iterator[None]:
    """Check every load and store of interpreted kernels until the end of the block."""
    watch = _Watch()
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store
    convert, call = interpreter._implicit_cvt, GridExecutor.__call__

    def watched_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        watch.check("load", pointers, mask)
        return load(self, pointers, mask, *rest)

    def watched_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        watch.record(watch.check("store", pointers, mask), tuple(self.grid_idx))
        return store(self, pointers, value, mask, *rest)

    def noting_convert(argument: Any) -> Any:
        if hasattr(argument, "untyped_storage"):
            storage = argument.untyped_storage()
            watch.spans.add((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
        return convert(argument)

    def fresh_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        watch.__init__()  # type: ignore[misc]  # a launch knows only its own tensors and writes
        return call(self, *args, **kwargs)

    InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store = watched_load, watched_store
    interpreter._implicit_cvt, GridExecutor.__call__ = noting_convert, fresh_call
    try:
        yield
    finally:
        InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store = load, store
        interpreter._implicit_cvt, GridExecutor.__call__ = convert, call
