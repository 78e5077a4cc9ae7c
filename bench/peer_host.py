"""Run an engine's host code where there is no device.

Engines pin the host memory that they copy to a device from; torch refuses to where it finds no device, and nothing is
lost if it is not pinned then. And some of their host code is compiled from C++ when it is first needed. Cost: three
attributes of torch are replaced for as long as this lasts, so keep it short.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def host_only() -> Iterator[None]:
    """Pin no memory as long as this lasts, unless there is a device to pin it for."""
    if torch.cuda.is_available():
        yield
        return
    host: Any = torch
    host.empty, host.tensor, host.Tensor.pin_memory = _STAND_INS
    try:
        yield
    finally:
        host.empty, host.tensor, host.Tensor.pin_memory = _OWN


def _unpinned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def unpinned(*values: Any, pin_memory: bool = False, **how: Any) -> torch.Tensor:  # noqa: ARG001  (it is let fall)
        return make(*values, **how)

    return unpinned


_OWN: Any = (torch.empty, torch.tensor, torch.Tensor.pin_memory)
_STAND_INS: Any = (_unpinned(torch.empty), _unpinned(torch.tensor), lambda tensor: tensor)


def common_length(first: torch.Tensor, second: torch.Tensor) -> int:
    """Return how many ids two lists of them have in common from the first on."""
    shorter = min(len(first), len(second))
    differs = first.numpy()[:shorter] != second.numpy()[:shorter]
    return int(differs.argmax()) if differs.any() else shorter
