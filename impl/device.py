"""Where launches run: asynchronously to the host, in order, with a fence for each.

A device has two queues. *Uploads* bring what the host has prepared (table edits, slots, token ids) to the device and
run as early as they can; *launches* copy, append and attend. Each queue keeps its order, a launch comes after all
uploads that were handed over before it, and nothing else is ordered: the upload of step n + 1 runs while step n still
computes. That overlap is the reason to have two queues, and what makes it safe is the cache's promise that a table row
that a launch in flight reads is append-only (R-LIFE-6), and that staging buffers wait for the same fences.

On a CPU a queue is a thread that works off one item at a time; on CUDA it is a stream, and a fence is an event. The
work is the same Python function in both cases. A thread calls it later, when its turn comes; for a stream it is called
at once, and what it queues there happens later. So the work may use nothing of the host that changes afterwards.

Guarantees: a fence is done when the work has been done, or could not be. A launch that fails (`DeviceFailed`) stops
none behind it; behind an upload that failed the device's table is not what the host thinks, and so every launch says
`DeviceLost`. Cost: a future or an event a launch. The idea of streams and events is CUDA's. Considered: one queue, as
most engines have (uploads then wait behind kernels); a thread that polls.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from .arguments import shown
from .refusals import InvalidArgument

Work = Callable[[], object]


class DeviceFailed(Exception):  # noqa: N818  (named like the refusals: what happened, in the past tense)
    """The device could not do a launch: what it should have written is not there. The cause is chained."""


class DeviceLost(Exception):  # noqa: N818  (the same)
    """The device can do nothing more: an upload failed, or the device itself. The cause is chained."""


class Fence(Protocol):
    """The end of a launch, as the host sees it."""

    def done(self) -> bool:
        """Whether the launch has ended, without waiting for it."""

    def wait(self) -> None:
        """Wait until the launch has ended. Raises `DeviceFailed` where it could not be done, or `DeviceLost`."""


class Device(Protocol):
    """Two queues of work, uploads and launches; see the module."""

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Allocate memory for the two queues' own use, to be let go when all that used it has ended."""

    def host_memory(self, size: int, dtype: torch.dtype) -> Tensor:
        """Allocate host memory that the device can be sent from, and send to, asynchronously."""

    def landing(self, host: Tensor) -> Tensor:
        """Return where host memory lands on the device: memory of the same size, or the same memory."""

    def settle(self) -> None:
        """Wait for what was done elsewhere on the device: its tensors are filled from here on."""

    def upload(self, work: Work) -> None:
        """Queue an upload, behind earlier uploads and nothing else."""

    def launch(self, work: Work) -> Fence:
        """Queue a launch, behind earlier launches and all uploads queued so far."""

    def close(self) -> None:
        """Wait for all that is queued."""


@dataclass(frozen=True, slots=True)
class ThreadFence:
    """A launch on a thread."""

    future: Future[object]

    def done(self) -> bool:
        """Whether the launch has ended, without waiting for it."""
        return self.future.done()

    def wait(self) -> None:
        """Wait until the launch has ended. Raises `DeviceFailed` where it could not be done, or `DeviceLost`."""
        error = self.future.exception()
        if isinstance(error, DeviceLost):
            raise error
        if error is not None:
            raise DeviceFailed(f"a launch failed: {error}") from error


class ThreadDevice:
    """A CPU as a device: a thread for uploads and a thread for launches."""

    __slots__ = ("_launches", "_uploaded", "_uploads", "device")

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self._uploads = ThreadPoolExecutor(1, "uploads")
        self._launches = ThreadPoolExecutor(1, "launches")
        self._uploaded: Future[object] | None = None

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Allocate memory."""
        return torch.empty(*shape, dtype=dtype)

    def host_memory(self, size: int, dtype: torch.dtype) -> Tensor:
        """Allocate memory."""
        return torch.empty(size, dtype=dtype)

    def landing(self, host: Tensor) -> Tensor:
        """Return the same memory."""
        return host

    def settle(self) -> None:
        """Wait for nothing: what was done on a CPU is done."""

    def upload(self, work: Work) -> None:
        """Queue an upload, behind earlier uploads and nothing else."""
        self._uploaded = self._uploads.submit(_call, work, self._uploaded)  # for it to fail if an earlier one has

    def launch(self, work: Work) -> ThreadFence:
        """Queue a launch, behind earlier launches and all uploads queued so far."""
        return ThreadFence(self._launches.submit(_call, work, self._uploaded))

    def close(self) -> None:
        """Wait for all that is queued."""
        self._uploads.shutdown()
        self._launches.shutdown()


def _call(work: Work, after: Future[object] | None) -> None:
    error = after.exception() if after is not None else None
    if error is not None:
        raise DeviceLost(f"an upload failed: {error}") from error
    with torch.no_grad():
        work()


@dataclass(frozen=True, slots=True)
class EventFence:
    """A launch on a stream, or what went wrong while it or an upload was queued."""

    event: torch.cuda.Event
    error: Exception | None
    upload_error: Exception | None

    def done(self) -> bool:
        """Whether the launch has ended, without waiting for it."""
        return bool(self.event.query())  # type: ignore[no-untyped-call]  # torch's own

    def wait(self) -> None:
        """Wait until the launch has ended. Raises `DeviceFailed` where it could not be done, or `DeviceLost`."""
        try:
            self.event.synchronize()
        except RuntimeError as error:
            raise DeviceLost(f"the device failed: {error}") from error
        if self.upload_error is not None:
            raise DeviceLost(f"an upload failed: {self.upload_error}") from self.upload_error
        if self.error is not None:
            raise DeviceFailed(f"a launch failed: {self.error}") from self.error


@dataclass(slots=True)
class CudaDevice:
    """A GPU: a stream for uploads and a stream for launches. Not yet run on one."""

    device: torch.device
    _uploads: torch.cuda.Stream = field(init=False)
    _launches: torch.cuda.Stream = field(init=False)
    _failed: Exception | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._uploads = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch's own
        self._launches = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch's own

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Allocate memory of the upload stream: what had it before had it there, so uploads may write it at once."""
        with torch.cuda.stream(self._uploads):
            return torch.empty(*shape, dtype=dtype, device=self.device)

    def host_memory(self, size: int, dtype: torch.dtype) -> Tensor:
        """Allocate pinned host memory."""
        return torch.empty(size, dtype=dtype, pin_memory=self.device.type == "cuda")

    def landing(self, host: Tensor) -> Tensor:
        """Allocate device memory of the same size."""
        return self.empty(*host.shape, dtype=host.dtype)

    def settle(self) -> None:
        """Wait for all streams: the two begin behind whatever filled the pool and the model's weights."""
        torch.cuda.synchronize(self.device)

    def upload(self, work: Work) -> None:
        """Queue an upload, behind earlier uploads and nothing else."""
        self._failed = self._failed or self._queue(work, self._uploads)

    def launch(self, work: Work) -> EventFence:
        """Queue a launch, behind earlier launches and all uploads queued so far."""
        self._launches.wait_stream(self._uploads)
        error = None if self._failed else self._queue(work, self._launches)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own
        event.record(self._launches)
        return EventFence(event, error, self._failed)

    def close(self) -> None:
        """Wait for all that is queued."""
        self._uploads.synchronize()
        self._launches.synchronize()

    @staticmethod
    def _queue(work: Work, stream: torch.cuda.Stream) -> Exception | None:
        try:
            with torch.cuda.stream(stream), torch.no_grad():
                work()
        except Exception as error:  # noqa: BLE001  (whatever a model raises is the launch's failure, told at its fence)
            return error
        return None


def open_device(device: torch.device | str) -> ThreadDevice | CudaDevice:
    """Open the queues of a device: a CPU or a CUDA GPU. Refused: `InvalidArgument` for any other, or one not there."""
    device = existing(device)
    if device.type == "cpu":
        return ThreadDevice()
    if device.type == "cuda":
        return CudaDevice(device)
    raise InvalidArgument(f"launches run on a cpu or on cuda, not on {device}")


def existing(device: torch.device | str) -> torch.device:
    """Return a device that torch knows and, if it is a GPU, can use. Refused: `InvalidArgument`."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise InvalidArgument(f"torch knows no device {shown(device)}: say cpu or cuda") from None
    if found.type == "cuda" and (found.index or 0) >= (there := torch.cuda.device_count()):
        raise InvalidArgument(f"there is no device {found}: torch can use {there} CUDA GPUs here")
    return found
