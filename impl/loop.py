"""The loop: scheduler, cache, storage and device together, with a model that the caller brings.

    loop = Loop(Scheduler(cache, limits), storage, model, open_device("cpu"))
    loop.submit(Request(1, prompt, outputs=20))
    while (step := loop.step()).busy:
        if (collected := step.collected) is not None:
            taken = collected.taken
            tokens = zip(collected.names[taken], collected.sampled[taken])  # one for each of these sequences

`plan` asks the scheduler for a step and hands it to the device; `collect` waits for the oldest launch in flight and
brings what it sampled to the scheduler; `step` plans one and, where as many are in flight as may be or nothing could be
planned, collects the oldest. `run` goes on to the end and keeps no token. Between any two calls requests may be
submitted on the loop, and cancelled and preempted on the scheduler: what the device still does for them is nobody's,
and their blocks, table rows and staging buffers wait until it has been done.

Guarantees: nothing that the device may still touch is used again (R-LIFE-1, R-LIFE-6). A launch that the device could
not do, or that sampled what is no token id, costs its requests a recompute and the engine nothing. Cost: outside
kernels under a millisecond a step for 2,000 sequences (`python -m pagedkv.bench.loop_speed`); the host waits for the
device in `collect` alone. Sources: planning apart from execution, Yu et al., "Orca" (OSDI '22); one step ahead,
SGLang's overlap scheduler. Considered: a loop in a thread of its own (an engine has one).

On a GPU, planning, launching and retiring a step are NVTX ranges on the host's time line (`pagedkv.plan`,
`pagedkv.launch`, `pagedkv.retire`), which Nsight Systems shows beside the kernels; the wait for the device is none of
them. Without one there are no ranges.
"""

from collections import deque
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from .arguments import Integers, integer, shown, token_ids
from .arrays import NO_SLOTS, Int64Array, frozen
from .device import CudaDevice, Device, DeviceFailed
from .model import Model
from .plans import NOTHING_CAME, Completion, Plan, Preemption
from .refusals import InvalidArgument
from .requests import Request
from .scheduler import Scheduler
from .step_tokens import Placeholders
from .storage import Storage
from .worker import Submitted, Worker

NO_RANGE = nullcontext()
NOBODY = frozen(np.empty(0, np.bool_))


class Collected(NamedTuple):
    """What came of a launch. The arrays are empty where the device could not do it."""

    launch: int
    sampled: Int64Array  # [samples] a token for each that the plan announced
    names: Int64Array  # [samples] of the sequences that are given them, where they are taken
    taken: NDArray[np.bool_]  # [samples] False where the sequence had left, or been preempted: nobody's token
    completion: Completion
    error: DeviceFailed | None = None
    preempted: tuple[Preemption, ...] = ()  # by the error: they are computed anew


class Step(NamedTuple):
    """One turn of the loop."""

    plan: Plan
    collected: Collected | None
    bytes_uploaded: int
    host_us: float  # what the turn took without the wait for the device; on CUDA, with queueing the kernels

    @property
    def busy(self) -> bool:
        """Whether anything was done: an engine without new requests may sleep where nothing was."""
        plan = self.plan
        return plan.launch is not None or self.collected is not None or bool(plan.preempted or plan.failed)


class Loop:
    """An engine's loop over one cache: `submit`, then `run`, or `step`, or `plan` and `collect`.

    Requests are submitted on the loop, and cancelled, preempted and looked at on `scheduler`. As a context manager a
    loop closes its device.

    The scheduler and its cache are new: what was published before is not in this storage. The cache's sizes are the
    storage's. A sample that is given one of `stop_tokens` is done. Refused: `InvalidArgument`.
    """

    __slots__ = ("_in_flight", "_placeholders", "_range", "_stop_tokens", "_waited_us", "scheduler", "worker")

    def __init__(
        self, scheduler: Scheduler, storage: Storage, model: Model, device: Device, *, stop_tokens: Integers = ()
    ) -> None:
        _check_kinds(scheduler, storage, device)
        cache = scheduler.cache
        if (cache.blocks, cache.block_size) != (storage.blocks, storage.block_size):
            raise InvalidArgument(
                f"the cache has {cache.blocks} blocks of {cache.block_size} and the storage"
                f" {storage.blocks} of {storage.block_size}: make both of one size"
            )
        q_heads = integer("the model's q_heads", getattr(model, "q_heads", None))  # type: ignore[arg-type]  # refused there
        if q_heads < 1 or q_heads % storage.shape.kv_heads:
            raise InvalidArgument(
                f"{q_heads} query heads of the model do not divide into {storage.shape.kv_heads} KV heads"
            )
        if storage.device.type != device.device.type:
            raise InvalidArgument(f"the storage is on {storage.device}, and the device is {device.device}")
        if scheduler.requests() or cache.sequences() or cache.in_flight():
            raise InvalidArgument("the scheduler has been at work already: a loop follows its cache from the beginning")
        if cache.published().size:
            raise InvalidArgument(
                "the cache has blocks published already, and they are not in this storage: clear() it"
            )
        self._stop_tokens = token_ids(stop_tokens)
        self.scheduler = scheduler
        self.worker = Worker(storage, model, device)
        self._placeholders = Placeholders()
        self._in_flight: deque[Submitted] = deque()
        self._waited_us = 0.0
        self._range = _nvtx_range if isinstance(device, CudaDevice) else _no_range
        scheduler.require_token_ids()

    @property
    def in_flight(self) -> int:
        """How many launches the device has been given and the scheduler not been told of."""
        return len(self._in_flight)

    def submit(self, request: Request) -> range:
        """Take in a request whose prompt is token ids. Refused: as by `Scheduler.submit`, and where it is a number."""
        return self.scheduler.submit(request)

    def plan(self) -> tuple[Plan, int]:
        """Plan a step and hand its launch, if it has one, to the device; return it, and how many bytes went up."""
        with self._range("pagedkv.plan"):
            plan = self.scheduler.schedule()
            mirror = self.worker.mirror
            if plan.extension is not None:
                mirror.edit(plan.extension.edits)
            for begun in plan.begun:
                mirror.begin_row(begun.row, begun.blocks.size)
        if plan.launch is None:
            return plan, 0
        with self._range("pagedkv.launch"):
            tokens = self._placeholders.tokens(self.scheduler.serving, plan)
            submitted = self.worker.submit(plan.launch, tokens, self.scheduler.cache.table)
        self._in_flight.append(submitted)
        return plan, submitted.bytes_uploaded

    def collect(self) -> Collected | None:
        """Wait for the oldest launch in flight and tell the scheduler what it sampled; None where there is none.

        What is no token id fails the launch, too: a device that samples it has not done its work. Raises `DeviceLost`
        where the device can do nothing more; then nothing has changed.
        """
        if not self._in_flight:
            return None
        submitted = self._in_flight[0]
        launch, failure = submitted.launch.id, None
        try:
            sampled = self._wait_for(submitted)
        except DeviceFailed as error:
            sampled, failure = NO_SLOTS, error
        with self._range("pagedkv.retire"):
            if failure is not None:
                preempted = self.scheduler.fail(launch)
                collected = Collected(launch, NO_SLOTS, NO_SLOTS, NOBODY, NOTHING_CAME, failure, preempted)
            else:
                collected = self._complete(launch, sampled)
            self._in_flight.popleft()
            self.worker.retired(launch)
        return collected

    def step(self) -> Step:
        """Plan a step; collect the oldest where as many are in flight as may be, or nothing could be planned.

        A launch that fails is computed anew, however often: an engine counts `Collected.error` and cancels what fails
        again.
        """
        before, self._waited_us = perf_counter(), 0.0
        plan, uploaded = self.plan()
        full = len(self._in_flight) >= self.scheduler.limits.steps_ahead
        collected = self.collect() if full or plan.launch is None else None
        return Step(plan, collected, uploaded, (perf_counter() - before) * 1e6 - self._waited_us)

    def run(self) -> None:
        """Go on until nothing can be done; what pins keep out still waits.

        Raises `DeviceFailed` where a launch could not be done, or `DeviceLost`. Its requests wait then, to be computed
        anew: whoever wants that calls again.
        """
        while (step := self.step()).busy:
            if step.collected is not None and step.collected.error is not None:
                raise step.collected.error

    def close(self) -> None:
        """Wait for the device, and let go of it."""
        self.worker.device.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait_for(self, submitted: Submitted) -> Int64Array:
        """Return what a launch sampled, all token ids, and count the wait. Raises `DeviceFailed`, `DeviceLost`."""
        before = perf_counter()
        try:
            sampled = submitted.sampled()
        finally:
            self._waited_us += (perf_counter() - before) * 1e6
        try:
            token_ids(sampled)
        except InvalidArgument as error:
            raise DeviceFailed(f"launch {submitted.launch.id} sampled what is no token: {error}") from error
        return sampled

    def _complete(self, launch: int, sampled: Int64Array) -> Collected:
        """Tell the scheduler what a launch sampled, and which of the sequences need no more."""
        running, flight = self.scheduler.serving.running, self.scheduler.serving.flights[launch]
        names = running.name[flight.receivers]
        taken = running.life[flight.receivers] == flight.receiver_lives
        stopped = names[taken & np.isin(sampled, self._stop_tokens)].tolist() if self._stop_tokens.size else ()
        completion = self.scheduler.complete(launch, sampled, stopped)
        if completion.publication is not None:
            self.worker.mirror.edit(completion.publication.edits)
        return Collected(launch, sampled, names, taken, completion)


def _nvtx_range(name: str) -> AbstractContextManager[None]:
    """Return a range on the host's time line. Cost: about a microsecond."""
    return torch.cuda.nvtx.range(name)


def _no_range(_name: str) -> AbstractContextManager[None]:
    return NO_RANGE


def _check_kinds(scheduler: Scheduler, storage: Storage, device: Device) -> None:
    """Refuse arguments of another kind, before they are looked into."""
    if not isinstance(scheduler, Scheduler):
        raise InvalidArgument(f"a loop's scheduler must be a Scheduler, not {shown(scheduler)}")
    if not isinstance(storage, Storage):
        raise InvalidArgument(f"a loop's storage must be a Storage, not {shown(storage)}")
    if not isinstance(getattr(device, "device", None), torch.device):
        raise InvalidArgument(f"a loop's device must be one that open_device returns, not {shown(device)}")
