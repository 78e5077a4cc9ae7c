"""Compile kernels for a GPU that is not there, and read back what the compiler made of them.

A stub driver tells Triton that a chosen GPU is active, so that the launches of serving (`launch.KernelCall`) go through
Triton's own specialisation, with the real strides and alignments, and stop before the launch. From the result come
registers, stack and instruction counts: for NVIDIA by the `cuobjdump` that Triton ships, for AMD from the assembly.
"""

import contextlib
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
# Shared memory a block may use, bytes (CUDA programming guide, table of compute capabilities; CDNA3 ISA: 64 KiB LDS).
SHARED_MEMORY_LIMIT = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx942": 64 * 1024}


@dataclass(frozen=True, slots=True)
class Compiled:
    """What one kernel became on one target.

    `stack` is in bytes (spills live there); `loads_128` and `matrix` count instructions: 128-bit loads from global
    memory, and matrix instructions by kind (HMMA, HGMMA, UTCHMMA, MFMA).
    """

    registers: int
    stack: int
    shared_memory: int
    loads_128: int
    matrix: dict[str, int]


class _StubDriver(DriverBase):  # type: ignore[misc]  # Triton has no types
    """A driver for a GPU that is not there: enough to compile, nothing to launch."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Callable[..., Any]:
        raise NotImplementedError("no GPU to measure on")

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int = 0) -> int:
        return 0


@contextlib.contextmanager
def compiling_for(target: str, *kernels: Any) -> Iterator[None]:
    """Make `target` the active GPU for compilation until the end of the block; `kernels` forget what they compiled."""
    driver.set_active(_StubDriver(TARGETS[target]))
    try:
        for kernel in kernels:
            kernel.device_caches.clear()
        yield
    finally:
        for kernel in kernels:
            kernel.device_caches.clear()
        with contextlib.suppress(RuntimeError):  # no GPU at all: then there is nothing to return to
            driver.reset_active()


def inspect(compiled: Any, target: str) -> Compiled:
    """Read back one compiled kernel. Cost: two runs of cuobjdump, about 0.1 s."""
    shared = int(compiled.metadata.shared)
    if target.startswith("sm_"):
        return _inspect_cubin(compiled.asm["cubin"], shared)
    return _inspect_amdgcn(compiled.asm["amdgcn"], shared)


def _inspect_cubin(cubin: bytes, shared: int) -> Compiled:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        usage, sass = (_cuobjdump(option, path) for option in ("-res-usage", "-sass"))
    # The first word of an instruction, e.g. LDGSTS.E.BYPASS.LTC128B.128.
    words = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", sass)
    loads = [w for w in words if w.startswith(("LDG.", "LDGSTS.")) and "128" in w.split(".")]
    kinds = Counter(w.split(".")[0] for w in words if re.match(r"(HMMA|HGMMA|QGMMA|UTC\w*MMA)\b", w))
    return Compiled(
        registers=int(_find(r"REG:(\d+)", usage)),
        stack=int(_find(r"STACK:(\d+)", usage)),
        shared_memory=shared,
        loads_128=len(loads),
        matrix=dict(kinds),
    )


def _inspect_amdgcn(text: str, shared: int) -> Compiled:
    return Compiled(
        registers=int(_find(r"\.vgpr_count:\s+(\d+)", text)),
        stack=int(_find(r"\.private_segment_fixed_size:\s+(\d+)", text)),
        shared_memory=shared,
        loads_128=len(re.findall(r"(?:global|buffer)_load_dwordx4", text)),
        matrix=dict(Counter({"MFMA": len(re.findall(r"\bv_mfma_", text))})),
    )


def _cuobjdump(option: str, path: Path) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return subprocess.run([tool, option, path], check=True, capture_output=True, text=True).stdout  # noqa: S603  (our own command)


def _find(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"compiler output has no {pattern!r}")
    return found.group(1)
