"""Staging buffers: what the host tells the device about a step, in one transfer.

A step needs a dozen small arrays on the device: table edits, row indices, slots, token ids, work lists. They are packed
one behind the other into one host buffer (pinned for CUDA, so that the transfer is asynchronous), which goes up in one
copy; the device reads the arrays as views of where they landed. A CPU reads the host buffer itself. What a launch
samples comes back the same way.

The device reads a buffer when the launch executes, long after the host has filled it. So a buffer is under the launch's
fence like a block: it is used again when that launch has retired, and not before (R-LIFE-6). Reused a step too early,
a launch would write to the next step's slots.

Guarantees: a buffer belongs to one launch from `pack` to `recycle`. Cost: a pass over the bytes; as many buffers as
there are launches in flight at a time, and one more; one that is too small is replaced by one of twice the size.
Considered: a tensor for each array (a dozen transfers of some 5 us, and pinned memory for each).
"""

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from .arrays import Int32Array, Int64Array
from .device import Device

ALIGNMENT = 16  # bytes; what vectorised loads want, and at least what any dtype here needs
SMALLEST = 1 << 16  # bytes


class StagingBuffer:
    """A host buffer, where it lands on the device, and room for what comes back.

    On the host: `fill`, `expect`, `received`. As work of the device's queues: `send`, `send_back`.
    """

    __slots__ = ("_device", "_host", "_results", "_samples", "_target", "_views", "landed", "used")

    def __init__(self, size: int, device: Device) -> None:
        self._device = device
        self._host = device.host_memory(size, torch.uint8)
        self._target = device.landing(self._host)
        self._results = device.host_memory(0, torch.int64)
        self._views = {
            dtype.itemsize: (self._host.view(dtype).numpy(), self._target.view(dtype))
            for dtype in (torch.int32, torch.int64)
        }
        self._samples = 0
        self.landed: list[Tensor] = []  # the arrays, on the device
        self.used = 0  # bytes

    @property
    def size(self) -> int:
        """Bytes."""
        return self._host.numel()

    def fill(self, arrays: Sequence[Int32Array | Int64Array]) -> None:
        """Copy arrays into the buffer, which has room for them (`bytes_packed`). O(bytes)."""
        self.landed.clear()
        offset = 0
        for array in arrays:
            host, landed = self._views[array.itemsize]
            start = offset // array.itemsize
            host[start : start + array.size] = array.reshape(-1)
            part = landed[start : start + array.size]
            self.landed.append(part if array.ndim == 1 else part.view(array.shape))
            offset += _aligned(array.nbytes)
        self.used = offset

    def expect(self, samples: int) -> None:
        """Make room for so many tokens to come back."""
        self._samples = samples
        if samples > self._results.numel():
            self._results = self._device.host_memory(2 * samples, torch.int64)

    def send(self) -> None:
        """Bring the arrays to the device."""
        if self._target is not self._host:
            self._target[: self.used].copy_(self._host[: self.used], non_blocking=True)

    def send_back(self, tokens: Tensor) -> None:
        """Bring sampled tokens `[samples]` to the host."""
        self._results[: self._samples].copy_(tokens, non_blocking=True)

    def received(self) -> Int64Array:
        """Return what has come back, as an array of its own."""
        tokens: Int64Array = self._results[: self._samples].numpy().copy()
        return tokens


class StagingPool:
    """Buffers, each a launch's or free: `pack` one for a launch, `recycle` those of launches that have retired."""

    __slots__ = ("_device", "_free", "_taken")

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: list[StagingBuffer] = []
        self._taken: deque[tuple[int, StagingBuffer]] = deque()  # with its launch, oldest first

    @property
    def in_use(self) -> int:
        """How many buffers wait for their launches."""
        return len(self._taken)

    def pack(self, launch_id: int, arrays: Sequence[Int32Array | Int64Array]) -> StagingBuffer:
        """Return a buffer that holds these arrays, this launch's until it is recycled. O(bytes)."""
        size = sum(_aligned(array.nbytes) for array in arrays)
        buffer = self._free.pop() if self._free else None
        if buffer is None or buffer.size < size:
            buffer = StagingBuffer(max(SMALLEST, _aligned(2 * size)), self._device)
        buffer.fill(arrays)
        self._taken.append((launch_id, buffer))
        return buffer

    def recycle(self, launch_id: int) -> None:
        """Take back the buffers of launches up to this one, all of which have retired. O(buffers taken back)."""
        while self._taken and self._taken[0][0] <= launch_id:
            self._free.append(self._taken.popleft()[1])


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
