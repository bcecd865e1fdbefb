"""When a private API of torch, Numba or LLVM is missing or changed, the user reads one sentence."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from numba import njit, types

from longlag.engines import _private

PACKAGE = Path(_private.__file__).parents[1]
FUNCTORCH = getattr(torch._C, "_functorch")  # noqa: B009  (torch's type stubs do not know it)


@pytest.fixture(autouse=True)
def fresh():
    _private.check_torch.cache_clear()
    yield
    _private.check_torch.cache_clear()


def sentence(package, what):
    return rf"^longlag: {re.escape(what)} of {package} \S+ is not as expected \(.*\); engine='reference' works$"


@pytest.mark.parametrize(
    ("owner", "name", "what"),
    [
        (torch._C, "_are_functorch_transforms_active", "_C._are_functorch_transforms_active"),
        (torch._C, "_len_torch_dispatch_stack", "_C._len_torch_dispatch_stack"),
        (torch.autograd.forward_ad, "_current_level", "autograd.forward_ad._current_level"),
        (FUNCTORCH, "unwrap_if_dead", "_C._functorch.unwrap_if_dead"),
        (FUNCTORCH, "is_legacy_batchedtensor", "_C._functorch.is_legacy_batchedtensor"),
        (torch.autograd.function, "_SingleLevelFunction", "autograd.function._SingleLevelFunction"),
    ],
)
def test_a_name_that_torch_no_longer_has(monkeypatch, owner, name, what):
    _private.check_torch()
    _private.check_torch.cache_clear()
    monkeypatch.delattr(owner, name)
    with pytest.raises(RuntimeError, match=sentence("torch", what)):
        _private.check_torch()


def test_a_class_of_torch_that_works_otherwise(monkeypatch):
    monkeypatch.setattr(torch.autograd.function, "_SingleLevelFunction", object)
    with pytest.raises(RuntimeError, match=sentence("torch", "autograd.function._SingleLevelFunction")):
        _private.check_torch()
    monkeypatch.undo()
    monkeypatch.setattr(FUNCTORCH, "unwrap_if_dead", lambda x: x.clone())
    with pytest.raises(RuntimeError, match=sentence("torch", "_C._functorch.unwrap_if_dead")):
        _private.check_torch()


def test_a_user_reads_the_sentence():
    code = """
import torch, longlag as ll
del torch.autograd.function._SingleLevelFunction
for engine in ("cpu", "reference"):
    try:
        print(tuple(ll.LSTM(2, 3, engine=engine)(torch.zeros(4, 1, 2))[0].shape))
    except RuntimeError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    first, second = done.stdout.splitlines()
    assert re.match(sentence("torch", "autograd.function._SingleLevelFunction"), first)
    assert second == "(4, 1, 3)"


def test_tensors_with_operations_of_their_own(monkeypatch):
    class Wrapped(torch.Tensor):
        pass

    assert not _private.has_own_operations(torch.zeros(1))
    assert not _private.has_own_operations(torch.zeros(1).as_subclass(Wrapped))
    monkeypatch.delattr(torch._C, "_disabled_torch_dispatch_impl")
    with pytest.raises(RuntimeError, match=sentence("torch", "_C._disabled_torch_dispatch_impl")):
        _private.has_own_operations(torch.zeros(1).as_subclass(Wrapped))


def test_a_test_of_torch_that_overlooks_a_difference(monkeypatch):
    from torch._C._dynamo import guards

    from longlag.engines.cpu.runtime import _private as runtime

    tensors = torch.zeros(2), torch.zeros(2, 3)
    assert runtime.likeness(tensors)(*tensors)
    monkeypatch.setattr(guards, "TensorGuards", lambda *tensors, **_: SimpleNamespace(check=lambda *others: True))
    runtime.check_likeness.cache_clear()
    with pytest.raises(RuntimeError, match=sentence("torch", "_C._dynamo.guards.TensorGuards")):
        runtime.likeness(tensors)
    monkeypatch.delattr(guards, "TensorGuards")
    with pytest.raises(RuntimeError, match=sentence("torch", "_C._dynamo.guards.TensorGuards")):
        runtime.likeness(tensors)
    runtime.check_likeness.cache_clear()


@pytest.mark.parametrize("default", ["dtype", "device"])
def test_defaults_of_torch_may_be_changed_before_the_first_call(default):
    code = f"""
import torch, longlag as ll
layer, x = ll.LSTM(2, 3), torch.zeros(4, 1, 2)
torch.set_default_{default}({"torch.float64" if default == "dtype" else "'meta'"})
for _ in range(4):
    y = layer(x)[0]
    y.sum().backward()
print(y.dtype, y.device, tuple(layer.step(x[0])[0].shape))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.split() == ["torch.float32", "cpu", "(1,", "3)"]


def test_a_tensor_that_torch_makes_otherwise(monkeypatch):
    from torch._C._dynamo import guards

    from longlag.engines.cpu.runtime import _private as runtime

    made = runtime.empty_function()((2, 3), (3, 1), torch.float32)
    assert (made.shape, made.stride(), made.dtype, made.requires_grad) == ((2, 3), (3, 1), torch.float32, False)
    monkeypatch.setattr(guards, "_empty_strided_cpu", lambda shape, strides, dtype: torch.empty(shape))
    with pytest.raises(RuntimeError, match=sentence("torch", "_C._dynamo.guards._empty_strided_cpu")):
        runtime.empty_function()
    monkeypatch.delattr(guards, "_empty_strided_cpu")
    with pytest.raises(RuntimeError, match=sentence("torch", "_C._dynamo.guards._empty_strided_cpu")):
        runtime.empty_function()


SIGNATURE = types.void(types.CPointer(types.intp), types.intp)


def adds(table, number):
    table[0] += number


def test_the_calling_convention_is_looked_at_before_anything_runs(monkeypatch):
    import ctypes

    code = _private.object_file_of(adds, SIGNATURE, "adds")
    words = (ctypes.c_ssize_t * 1)(40)
    _private.callable_kernel(_private.load_object_file(code, "adds"), 2)(ctypes.addressof(words), 2)
    assert words[0] == 42
    monkeypatch.setattr(_private, "_word", lambda kind: "i32")  # as if Numba handed integers over in another way
    with pytest.raises(RuntimeError, match=sentence("numba", "the calling convention")):
        _private.object_file_of(adds, SIGNATURE, "adds")


def test_what_numba_no_longer_has(monkeypatch):
    kernel = njit(adds)
    owner = next(kind for kind in type(kernel).__mro__ if "inspect_llvm" in vars(kind))
    monkeypatch.delattr(owner, "inspect_llvm")
    with pytest.raises(RuntimeError, match=sentence("numba", "Dispatcher.inspect_llvm")):
        _private.object_file_of(adds, SIGNATURE, "adds")
    kernel._cache = None  # pyright: ignore[reportAttributeAccessIssue]  (absent from Numba's annotations)
    with pytest.raises(RuntimeError, match=sentence("numba", "Dispatcher._cache")):
        _private.set_cache(kernel, None)
    with pytest.raises(RuntimeError, match=sentence("numba", "CompileResult._reduce")):
        _private.pickled(object())
    with pytest.raises(RuntimeError, match=sentence("numba", "BaseContext.make_array")):
        _private.array_data(object(), None, None, None)


def test_what_llvm_no_longer_has(monkeypatch):
    import llvmlite.binding as llvm

    code = _private.object_file_of(adds, SIGNATURE, "adds")
    with pytest.raises(RuntimeError, match=sentence("llvmlite", "binding.create_mcjit_compiler")):
        _private.load_object_file(code, "subtracts")
    monkeypatch.delattr(llvm, "create_mcjit_compiler")
    with pytest.raises(RuntimeError, match=sentence("llvmlite", "binding.create_mcjit_compiler")):
        _private.load_object_file(code, "adds")
    monkeypatch.delattr(llvm, "parse_assembly")
    with pytest.raises(RuntimeError, match=sentence("llvmlite", "binding.TargetMachine.emit_object")):
        _private.object_file("")


def test_nothing_else_uses_private_names_of_torch_and_numba():
    """Attributes with an underscore of torch, numba and llvmlite, and ``make_array``, stand in one file."""
    found = []
    for file in sorted((PACKAGE / "engines").rglob("*.py")):
        if file.name == "_private.py":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("torch", "numba", "llvmlite"):
                names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
                found += [f"{file.name}: {name}" for name in names if name.startswith("_") and name != "__future__"]
            if isinstance(node, ast.Attribute):
                text = ast.unparse(node)
                private = re.match(r"(torch|numba|llvm|forward_ad)\b.*\._[a-zA-Z]", text)
                if private or node.attr in ("make_array", "create_mcjit_compiler"):
                    found.append(f"{file.name}: {text}")
    assert found == []


def test_the_first_call_may_be_made_without_gradients():
    """The self-test of the first call needs autograd; the user may have switched it off."""
    code = (
        "import torch, longlag as ll\n"
        "layer, x = ll.Elman(2, 3), torch.zeros(4, 1, 2)\n"
        "with torch.inference_mode():\n"
        "    print(layer(x)[0].shape)\n"
        "print(layer(x)[0].requires_grad)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["torch.Size([4, 1, 3])", "True"], done.stderr
