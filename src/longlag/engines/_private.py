"""Every private API of torch, Numba and LLVM that the engines use, with self-tests that detect changed APIs.

No other file uses these names. If an API is missing or behaves differently, the self-test raises an error that names
the package, its version and the API, before any machine code runs: see `_changed`. torch is tested when the CPU engine
is first used (`check_torch`), Numba whenever a kernel is built (`object_file_of`), LLVM whenever one is loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.modules import module as _modules

PLAIN_TYPES = frozenset((Tensor, torch.nn.Parameter))  # these types do not override operations


def _changed(package: str, what: str, why: object) -> RuntimeError:
    """The error for a changed API."""
    version = metadata.version(package)
    return RuntimeError(f"longlag: {what} of {package} {version} is not as expected ({why}); engine='reference' works")


@contextlib.contextmanager
def _expecting(package: str, what: str) -> Iterator[None]:
    try:
        yield
    except (AttributeError, ImportError, TypeError) as error:
        raise _changed(package, what, error) from error


# --------------------------------------------------------------------------------------------------------- torch
def transforms_active() -> bool:
    """Whether a transform of ``torch.func`` (vmap, grad, …) is active."""
    try:
        return torch._C._are_functorch_transforms_active()
    except AttributeError as error:
        raise _changed("torch", "_C._are_functorch_transforms_active", error) from error


def forward_mode_active() -> bool:
    """Whether derivatives are being computed in forward mode."""
    try:
        return forward_ad._current_level >= 0
    except (AttributeError, TypeError) as error:
        raise _changed("torch", "autograd.forward_ad._current_level", error) from error


def nothing_active() -> bool:
    """Whether torch executes operations as they are: no transform, forward mode, dispatch mode or compilation."""
    compiling = torch.compiler.is_compiling()  # first: torch.compile cannot trace the others
    return not (compiling or transforms_active() or forward_mode_active() or modes_active())


def calls_forward(module: torch.nn.Module) -> bool:
    """Whether a call of the module is a call of its ``forward``: no hooks, no ``module.compile()``, no tracing."""
    try:
        own = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
        common = _modules._global_forward_hooks or _modules._global_forward_pre_hooks
        common = common or _modules._global_backward_hooks or _modules._global_backward_pre_hooks
        special = module._compiled_call_impl or "forward" in module.__dict__ or torch._C._get_tracing_state()
        return not (own or common or special)
    except AttributeError as error:
        raise _changed("torch", "nn.Module._forward_hooks", error) from error


def modes_active() -> bool:
    """Whether a dispatch mode intercepts operations: fake tensors, tracing, counting."""
    try:
        return torch._C._len_torch_dispatch_stack() > 0
    except (AttributeError, TypeError) as error:
        raise _changed("torch", "_C._len_torch_dispatch_stack", error) from error


def has_own_operations(x: Tensor) -> bool:
    """Whether the class of x overrides operations: fake tensors, distributed tensors, wrappers."""
    if type(x) in PLAIN_TYPES:
        return False
    try:
        return type(x).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl  # pyright: ignore[reportAttributeAccessIssue]
    except AttributeError as error:
        raise _changed("torch", "_C._disabled_torch_dispatch_impl", error) from error


def unwrap_function() -> Callable[[Tensor], Tensor]:
    """A function that unwraps a tensor whose transform has ended: wrapped tensors may outlive ``torch.func.grad``."""
    with _expecting("torch", "_C._functorch.unwrap_if_dead"):
        from torch._C._functorch import unwrap_if_dead

        return unwrap_if_dead


def batch_test() -> Callable[[Tensor], bool]:
    """Tests whether a tensor is a batch of ``autograd.grad(..., is_grads_batched=True)``, which has its own vmap."""
    with _expecting("torch", "_C._functorch.is_legacy_batchedtensor"):
        from torch._C._functorch import is_legacy_batchedtensor

        return is_legacy_batchedtensor


def single_level_function() -> type:
    """``torch.autograd.Function`` without the torch.func support of its ``apply``, which costs 5 µs per call."""
    with _expecting("torch", "autograd.function._SingleLevelFunction"):
        from torch.autograd.function import _SingleLevelFunction

        return _SingleLevelFunction


@functools.cache
def check_torch() -> None:
    """Try everything above once, whatever mode the first call of a layer is made in."""
    with torch.inference_mode(False), torch.enable_grad():
        _check_torch()


def _check_torch() -> None:
    if transforms_active() not in (False, True):
        raise _changed("torch", "_C._are_functorch_transforms_active", f"it returned {transforms_active()!r}")
    modes_active()
    forward_mode_active()
    x = torch.ones(1)
    if batch_test()(x):
        raise _changed("torch", "_C._functorch.is_legacy_batchedtensor", "it takes an ordinary tensor for a batch")
    if unwrap_function()(x) is not x:
        raise _changed("torch", "_C._functorch.unwrap_if_dead", "it changed an ordinary tensor")
    base: Any = single_level_function()

    class Twice(base):
        @staticmethod
        def forward(ctx: Any, name: str, x: Tensor) -> Tensor:
            ctx.save_for_backward(x, x + 1, None)
            return 2 * x

        @staticmethod
        def backward(ctx: Any, d: Tensor) -> tuple[None, Tensor]:
            same, _, nothing = ctx.saved_tensors
            return None, 2 * d * same if nothing is None else d

    with _expecting("torch", "autograd.function._SingleLevelFunction"):
        y = Twice.apply("", x.requires_grad_())
        (d,) = torch.autograd.grad(y, x)  # without an error of its own: torch would load its symbolic shapes
    if d.shape != x.shape:
        raise _changed("torch", "autograd.function._SingleLevelFunction", f"a gradient had shape {tuple(d.shape)}")


# --------------------------------------------------------------------------------------------------------- Numba
NO_ALLOCATION: dict[str, Any] = {"_nrt": False}  # option of njit: no memory is counted or allocated
NO_PYTHON: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

# Numba's calling convention: ``int kernel(void **result, void **error, arguments…)``; 0 is success.
_nothing = ctypes.c_void_p()  # Numba's functions write a result even if they return nothing
_NOTHING = ctypes.addressof(_nothing)


def callable_kernel(address: int, words: int) -> Callable[..., None]:
    """The kernel at an address, callable from Python with this many integers. It releases the GIL."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_ssize_t] * words)
    return functools.partial(kind(address), _NOTHING, _NOTHING)


def call_kernel(builder: Any, address: Any, words: Sequence[Any]) -> None:
    """Emit a call of the kernel at an address (an LLVM integer) with LLVM integers."""
    from llvmlite import ir

    pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.IntType(32), [pointer.as_pointer(), pointer] + [ir.IntType(64)] * len(words))
    with builder.goto_entry_block():
        nothing = builder.alloca(pointer)
    builder.call(builder.inttoptr(address, kind.as_pointer()), [nothing, pointer(None), *words])


def array_data(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """The pointer to the first number of an array."""
    with _expecting("numba", "BaseContext.make_array"):
        return context.make_array(kind)(context, builder, value).data


def array_at(context: Any, builder: Any, kind: Any, place: Callable[[Any], Any], size: Any) -> Any:
    """An array of one dimension on memory that Numba does not own; ``place`` returns the pointer, given its type."""
    from llvmlite import ir

    with _expecting("numba", "BaseContext.make_array"):
        array = context.make_array(kind)(context, builder)
        each = ir.Constant(ir.IntType(64), context.get_abi_sizeof(context.get_data_type(kind.dtype)))
        data = place(array.data.type)
        context.populate_array(array, data=data, shape=[size], strides=[each], itemsize=each, meminfo=None)
        return array._getvalue()


def object_file_of(function: Callable[..., None], signature: Any, symbol: str, **options: Any) -> bytes:
    """The object file of a function that takes integers and pointers, named ``symbol``, independent of Python."""
    from numba import njit

    with _expecting("numba", "Dispatcher.inspect_llvm"):
        compiled: Any = njit(signature, **options, **NO_ALLOCATION, **NO_PYTHON)(function)
        text = compiled.inspect_llvm(signature.args)
        name = compiled.overloads[signature.args].fndesc.llvm_func_name
    with _expecting("llvmlite", "binding.parse_assembly"):
        import llvmlite.binding as llvm

        module = llvm.parse_assembly(text)
        declared = (f.name for f in module.functions if f.is_declaration and f.name != "erf")  # of the C library
        outside = sorted(name for name in declared if not name.startswith("llvm."))
        (kernel,) = (f for f in module.functions if f.name == name)
        got, wanted = str(kernel.global_value_type), [*["ptr"] * 2, *(_word(kind) for kind in signature.args)]
        kernel.name = symbol
    if outside:  # an error in longlag: a kernel allocates or raises
        raise RuntimeError(f"engine 'cpu': {function.__name__} calls {', '.join(outside)}")
    if got != f"i32 ({', '.join(wanted)})":
        raise _changed("numba", "the calling convention", f"{got} instead of i32 ({', '.join(wanted)})")
    return object_file(str(module))


def _word(kind: Any) -> str:
    return "i64" if str(kind) == "int64" else "ptr"


def set_cache(kernel: Any, cache: Any) -> None:
    """Let a jitted function ask ``cache`` for its machine code (``load_overload``, ``save_overload``)."""
    if not all(hasattr(getattr(kernel, "_cache", None), name) for name in ("load_overload", "save_overload")):
        raise _changed("numba", "Dispatcher._cache", f"it is {type(getattr(kernel, '_cache', None)).__name__}")
    kernel._cache = cache


def pickled(compiled: Any) -> bytes:
    """A compiled function as bytes."""
    with _expecting("numba", "CompileResult._reduce"):
        from numba.core.serialize import dumps

        return dumps(compiled._reduce())


def from_pickled(target_context: Any, reduced: Any) -> Any:
    """The inverse of `pickled`."""
    with _expecting("numba", "CompileResult._rebuild"):
        from numba.core.compiler import CompileResult

        return CompileResult._rebuild(target_context, *reduced)


# ---------------------------------------------------------------------------------------------------------- LLVM
_engines: list[Any] = []  # they own the machine code


@functools.cache
def processor() -> tuple[str, str]:
    """Name and features of this processor."""
    with _expecting("llvmlite", "binding.get_host_cpu_name"):
        import llvmlite.binding as llvm

        try:
            features = llvm.get_host_cpu_features().flatten()
        except RuntimeError:  # LLVM does not know the features on every system; the name is enough
            features = ""
        return llvm.get_host_cpu_name(), features


@functools.cache
def _target_machine() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    cpu, features = processor()
    options: dict[str, Any] = {"opt": 3, "cpu": cpu, "features": features, "jit": True, "codemodel": "jitdefault"}
    return llvm.Target.from_default_triple().create_target_machine(**options)


def object_file(text: str) -> bytes:
    """LLVM assembly as an object file for this processor."""
    with _expecting("llvmlite", "binding.TargetMachine.emit_object"):
        import llvmlite.binding as llvm

        return _target_machine().emit_object(llvm.parse_assembly(text))


def load_object_file(code: bytes, symbol: str) -> int:
    """Load an object file for the life of the process; the address of a function in it."""
    with _expecting("llvmlite", "binding.create_mcjit_compiler"):
        import llvmlite.binding as llvm

        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        _engines.append(engine)
        address = engine.get_function_address(symbol)
    if not address:
        raise _changed("llvmlite", "binding.create_mcjit_compiler", f"{symbol} has no address")
    return address
