"""Run an engine's host code where there is no device.

Engines pin the host memory that they copy to a device from. torch refuses to where it finds no device; nothing is lost
if it is not pinned then. Cost: three attributes of torch are replaced for as long as this lasts, so keep it short.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch


@contextmanager
def host_only() -> Iterator[None]:
    """Pin no memory as long as this lasts, unless there is a device to pin it for."""
    if torch.cuda.is_available():
        yield
        return
    with (
        patch.object(torch, "empty", _unpinned(torch.empty)),
        patch.object(torch, "tensor", _unpinned(torch.tensor)),
        patch.object(torch.Tensor, "pin_memory", lambda tensor: tensor),
    ):
        yield


def _unpinned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda *values, pin_memory=False, **how: make(*values, **how)  # noqa: ARG005  (it is let fall)
