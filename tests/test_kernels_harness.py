"""The bench that the kernel tests stand on, tested by itself: repaired numbers, the sanitizer, restored modules."""
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: N803  (constexpr parameters are upper case, as everywhere in Triton)

import sys

import pytest
import torch
import triton
import triton.language as tl
from pagedkv.kernels import attention_kernel
from triton.runtime.errors import InterpreterError
from triton.runtime.jit import JITFunction

from triton_cases import KERNEL_MODULES, kernels_on
from triton_interpreter import interpreted


@triton.jit
def _cast(source: tl.tensor, target: tl.tensor, N: tl.constexpr) -> None:
    at = tl.arange(0, N)
    tl.store(target + at, tl.load(source + at).to(target.dtype.element_ty))


@triton.jit
def _product(a: tl.tensor, b: tl.tensor, out: tl.tensor, N: tl.constexpr) -> None:
    at = tl.arange(0, N)
    square = at[:, None] * N + at[None, :]
    tl.store(out + square, tl.dot(tl.load(a + square), tl.load(b + square)))


@triton.jit
def _write(target: tl.tensor, shift: tl.tensor, N: tl.constexpr) -> None:
    at = tl.arange(0, N) + tl.program_id(0) * N + shift
    tl.store(target + at, tl.zeros([N], tl.float32))


@triton.jit
def _write_one_place(target: tl.tensor) -> None:
    tl.store(target, tl.program_id(0))


NARROW = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", NARROW)
def test_casts_are_those_of_torch(dtype: torch.dtype) -> None:
    numbers = torch.randn(128, generator=torch.Generator().manual_seed(0)) * 30
    narrow, wide = torch.empty(128, dtype=dtype), torch.empty(128)
    with interpreted(sys.modules[__name__]):
        _cast[(1,)](numbers, narrow, N=128)
        _cast[(1,)](narrow, wide, N=128)
    assert torch.equal(wide, numbers.to(dtype).float())


def test_fp8_casts_saturate_as_the_hardware_does() -> None:
    numbers = torch.tensor([1e9, -1e9, 449.0, float("nan")])
    narrow = torch.empty(4, dtype=torch.float8_e4m3fn)
    with interpreted(sys.modules[__name__]):
        _cast[(1,)](numbers, narrow, N=4)
    assert narrow.float()[:3].tolist() == [448.0, -448.0, 448.0]
    assert narrow.float()[3].isnan()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dots_of_narrow_types_are_right(dtype: torch.dtype) -> None:
    a, b = (torch.randn(32, 32, generator=torch.Generator().manual_seed(s)).to(dtype) for s in (0, 1))
    out = torch.empty(32, 32)
    with interpreted(sys.modules[__name__]):
        _product[(1,)](a, b, out, N=32)
    torch.testing.assert_close(out, a.float() @ b.float(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("shift", [-1, 1, 10**6])
def test_a_store_outside_every_tensor_is_a_fault(shift: int) -> None:
    target = torch.ones(32)
    with interpreted(sys.modules[__name__]), pytest.raises(InterpreterError, match=r"MemoryFault.*outside"):
        _write[(2,)](target, shift, N=16)


def test_two_programs_writing_one_address_are_a_fault() -> None:
    with interpreted(sys.modules[__name__]):
        _write_one_place[(1,)](torch.zeros(1))
        with pytest.raises(InterpreterError, match=r"MemoryFault.*write one address"):
            _write_one_place[(2,)](torch.zeros(1))


def test_a_store_inside_is_none() -> None:
    target = torch.ones(33)
    with interpreted(sys.modules[__name__]):
        _write[(2,)](target, 1, N=16)
    assert target.tolist() == [1.0] + [0.0] * 32


def test_fresh_tensors_are_full_of_nan() -> None:
    """Scratch and outputs that a kernel forgets to write must show."""
    with kernels_on("torch"):
        assert torch.empty(3).isnan().all()
        assert torch.zeros(1).new_empty((2, 2), dtype=torch.float32).isnan().all()
        assert torch.empty_like(torch.zeros(3, dtype=torch.bfloat16)).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


def test_interpreting_ends_without_a_trace() -> None:
    """One process can interpret and compile: everything swapped is put back."""
    before = [dict(vars(module)) for module in (*KERNEL_MODULES, tl, tl.standard)]
    with kernels_on("triton"):
        assert not isinstance(attention_kernel.attention_kernel, JITFunction)
    assert [dict(vars(module)) for module in (*KERNEL_MODULES, tl, tl.standard)] == before
