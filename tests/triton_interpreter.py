"""Run Triton kernels on a CPU, repaired and watched: what the kernel tests stand on.

`interpreted(modules)` swaps every compiled-kernel object of triton.language and of the given modules for an interpreted
one and puts all back on exit, so that one process can interpret and compile. Inside it

- bfloat16 and fp8 are right: Triton's interpreter computes bfloat16 dots and casts to bfloat16 and fp8 on raw bits
  (errors of 1e10; upstream declined a fix, triton-lang/triton#11584), so both go through torch here;
- every load and store is checked by the sanitizer (`triton_sanitizer`).
"""

import contextlib
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import torch
import triton.experimental.gluon.language  # noqa: F401  (Triton imports it late, and fails on swapped functions)
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle
from triton.runtime.jit import JITFunction

import triton_sanitizer

TORCH_DTYPES = {
    tl.float32: torch.float32,
    tl.float16: torch.float16,
    tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
}
SATURATES_AT = {tl.float8e4nv: 448.0, tl.float8e5: 57344.0}  # the hardware's conversion saturates

_interpreted: dict[int, tuple[JITFunction, InterpretedFunction]] = {}  # kept alive: the key is an id


@contextlib.contextmanager
def interpreted(*modules: ModuleType) -> Iterator[None]:
    """Interpret the kernels of these modules, repaired and under the sanitizer, until the end of the block."""
    language = [
        m for name, m in sys.modules.items() if name == "triton.language" or name.startswith("triton.language.")
    ]
    with contextlib.ExitStack() as undo:
        for module in [*language, *modules]:
            for name, value in list(vars(module).items()):
                if isinstance(value, JITFunction):
                    undo.callback(setattr, module, name, value)
                    setattr(module, name, _interpret(value))
        _patch(undo, InterpretedFunction, "__call__", _call_and_restore)
        _patch(undo, InterpreterBuilder, "create_dot", _repaired_dot)
        _patch(undo, InterpreterBuilder, "cast_impl", _repaired_cast)
        _patch(undo, InterpreterBuilder, "create_fp_to_fp", _repaired_fp_to_fp)
        for name in ("create_fp_ext", "create_fp_trunc"):
            _patch(undo, InterpreterBuilder, name, _cast_through_cast_impl)
        undo.enter_context(triton_sanitizer.watching())
        undo.enter_context(warnings.catch_warnings())
        # Triton 3.6 takes loop bounds out of one-element arrays.
        warnings.filterwarnings("ignore", "Conversion of an array with ndim > 0", DeprecationWarning)
        undo.enter_context(np.errstate(all="ignore"))  # a GPU does not warn of infinities and NaN, either
        yield


def _interpret(function: JITFunction) -> InterpretedFunction:
    if id(function) not in _interpreted:
        _interpreted[id(function)] = (function, InterpretedFunction(function.fn))
    return _interpreted[id(function)][1]


def _patch(undo: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    undo.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


def _call_and_restore(self: InterpretedFunction, *args: Any, **kwargs: Any) -> Any:
    """Call a device function; unlike the original, take back the language patches that the call makes."""
    scope = interpreter._patch_lang(self.fn)
    try:
        return self.rewrite()(*args, **kwargs)
    finally:
        scope.restore()


_original_dot = InterpreterBuilder.create_dot
_original_cast = InterpreterBuilder.cast_impl
_original_fp_to_fp = InterpreterBuilder.create_fp_to_fp


def _repaired_dot(self: Any, a: Any, b: Any, accumulator: Any, *precision: Any) -> Any:
    return _original_dot(self, _widened(a), _widened(b), accumulator, *precision)


def _repaired_cast(self: Any, source: Any, target: Any) -> Any:
    repaired = _convert(source, target.scalar)
    return _original_cast(self, source, target) if repaired is None else repaired


def _repaired_fp_to_fp(self: Any, source: Any, target: Any, rounding: Any) -> Any:
    repaired = _convert(source, target.scalar)
    return _original_fp_to_fp(self, source, target, rounding) if repaired is None else repaired


def _cast_through_cast_impl(self: Any, source: Any, target: Any) -> Any:
    return self.cast_impl(source, target)


def _widened(handle: Any) -> Any:
    converted = _convert(handle, tl.float32)
    return handle if converted is None else converted


def _convert(handle: Any, target: Any) -> Any:
    """Convert between floating-point types through torch; None where that is not our business."""
    source = handle.dtype.scalar
    if source == target or source not in TORCH_DTYPES or target not in TORCH_DTYPES or not np.ndim(handle.data):
        return None
    data = np.ascontiguousarray(handle.data)
    signed = data.view(np.int16) if data.dtype == np.uint16 else data
    numbers = torch.from_numpy(signed).view(TORCH_DTYPES[source]).float()
    if target in SATURATES_AT:
        numbers = numbers.clamp(-SATURATES_AT[target], SATURATES_AT[target])  # NaN stays NaN
    converted = numbers.to(TORCH_DTYPES[target])
    if target in {tl.float32, tl.float16}:
        return TensorHandle(converted.numpy(), target)
    if converted.element_size() == 1:
        return TensorHandle(converted.view(torch.uint8).numpy(), target)
    return TensorHandle(converted.view(torch.int16).numpy().view(np.uint16), target)
