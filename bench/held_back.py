"""A device that does its launches as late as it may: what a busy GPU does now and then, made the rule.

A launch that follows its submission at once hides every mistake in what it may still touch: the block that was freed
too early is still whole when it is read. So here a launch is kept back, at random, until the host waits for it or for
one behind it. Uploads go up at once, so that they run ahead as far as they ever can. Every such order is one that the
device underneath may take by itself. No time is involved: what is found with a seed is found again.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from pagedkv.impl.device import Device, Fence, Work
from torch import Tensor


@dataclass(slots=True)
class HeldFence:
    """A launch that is kept back, or has been handed on."""

    hand_on: Callable[[], None]  # this launch and all before it
    behind: Fence | None = None  # of the device underneath

    def done(self) -> bool:
        """Whether the launch has ended, without waiting for it."""
        return self.behind is not None and self.behind.done()

    def wait(self) -> None:
        """Hand on the launch, if it is kept back, and wait until it has ended."""
        if self.behind is None:
            self.hand_on()
        assert self.behind is not None, "a launch that is waited for has been handed on"
        self.behind.wait()


class HeldBack:
    """A device in front of another; see the module. `share` of the launches are kept back."""

    def __init__(self, device: Device, seed: int, share: float = 0.8) -> None:
        self._inner = device
        self._random = random.Random(seed)
        self._share = share
        self._held: list[tuple[HeldFence, Work]] = []

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self._inner.device

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Allocate memory."""
        return self._inner.empty(*shape, dtype=dtype)

    def host_memory(self, size: int, dtype: torch.dtype) -> Tensor:
        """Allocate host memory."""
        return self._inner.host_memory(size, dtype)

    def landing(self, host: Tensor) -> Tensor:
        """Return where host memory lands."""
        return self._inner.landing(host)

    def settle(self) -> None:
        """Wait for what was done elsewhere."""
        self._inner.settle()

    def upload(self, work: Work) -> None:
        """Queue an upload at once."""
        self._inner.upload(work)

    def launch(self, work: Work) -> HeldFence:
        """Keep a launch back, or hand it on with all that are kept back."""
        fence = HeldFence(lambda: self._hand_on(fence))
        self._held.append((fence, work))
        if self._random.random() >= self._share:
            self._hand_on(fence)
        return fence

    def close(self) -> None:
        """Hand on all launches and wait for them."""
        if self._held:
            self._hand_on(self._held[-1][0])
        self._inner.close()

    def _hand_on(self, last: HeldFence) -> None:
        while last.behind is None:
            fence, work = self._held.pop(0)
            fence.behind = self._inner.launch(work)
