"""Run an engine's host code where there is no device.

Engines pin the host memory that they copy to a device from. torch refuses to where it finds no device; nothing is lost
if it is not pinned then. Cost: two attributes of torch are replaced for as long as this lasts, so keep it short.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch


@contextmanager
def host_only() -> Iterator[None]:
    """Pin no memory as long as this lasts, unless there is a device to pin it for."""
    if torch.cuda.is_available():
        yield
        return
    with patch.object(torch, "empty", _unpinned), patch.object(torch.Tensor, "pin_memory", lambda tensor: tensor):
        yield


_empty = torch.empty


def _unpinned(*size: Any, pin_memory: bool = False, **how: Any) -> torch.Tensor:  # noqa: ARG001  (it is let fall)
    return _empty(*size, **how)
