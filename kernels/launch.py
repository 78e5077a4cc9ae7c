"""One kernel launch as a value: what is launched, on which grid, with which arguments.

Every Triton launch of this package is built as a `KernelCall` and then run. The compile report builds the very same
calls and compiles them for a GPU that is not there, so what it reports on is what serving runs.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from pagedkv.kernels.arguments import InvalidKernelArgument
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

WITHOUT_GPU = GPUTarget("cuda", 90, 32)  # what the interpreter stands for


def active_target() -> GPUTarget:
    """Return the GPU that kernels compile for: the current one, a stub (`offline`), or sm_90 where there is none."""
    try:
        return driver.active.get_current_target()
    except RuntimeError:
        return WITHOUT_GPU


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel, its grid, its arguments by name, and Triton's options (`num_warps`, `num_stages`)."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    options: dict[str, int] = field(default_factory=dict)

    def run(self) -> None:
        """Launch. Refuses tensors that no GPU can reach, unless the kernel is interpreted. Does not wait."""
        if isinstance(self.kernel, triton.JITFunction):
            for name, value in self.arguments.items():
                if isinstance(value, torch.Tensor) and value.device.type == "cpu" and not value.is_pinned():
                    raise InvalidKernelArgument(f"{name}: on the CPU; the Triton kernels need a GPU: backend='torch'")
        if 0 not in self.grid:
            self.kernel[self.grid](**self.arguments, **self.options, enable_fp_fusion=True)

    def compile(self) -> Any:
        """Compile for the active target without launching; returns Triton's compiled kernel."""
        return self.kernel.warmup(**self.arguments, **self.options, enable_fp_fusion=True, grid=self.grid)
