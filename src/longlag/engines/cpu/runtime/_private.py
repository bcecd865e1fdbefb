"""Private APIs of torch that make calls short, with self-tests that detect a changed API."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from longlag.engines._private import _changed, _expecting


def likeness(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    """A test whether other tensors are like these: classes, dtypes, devices, shapes, strides, ``requires_grad``.

    A negative bit and whatever torch.func, vmap or a mode wraps around a tensor make a difference, too. Values and
    memory do not. If two of the tensors are the same object, nothing is like them. torch.compile has this test for its
    guards; it takes less time than reading one attribute of every tensor.
    """
    check_likeness()
    return _likeness(tensors)


def empty_function() -> Callable[..., Tensor]:
    """A function that makes an uninitialised CPU tensor from shape, strides and dtype.

    It takes half the time of ``torch.empty``, because no dispatcher is asked. The code that torch.compile writes
    uses it.
    """
    with _expecting("torch", "_C._dynamo.guards._empty_strided_cpu"):
        empty = importlib.import_module("torch._C._dynamo.guards")._empty_strided_cpu
        made = empty((2, 3), (3, 1), torch.float64)
        if (made.shape, made.stride(), made.dtype, made.is_cpu) != ((2, 3), (3, 1), torch.float64, True):
            raise _changed("torch", "_C._dynamo.guards._empty_strided_cpu", f"it made a {made.dtype} {made.shape}")
    return empty


def never(*tensors: Tensor) -> bool:
    """The test that no tensors pass."""
    return False


def _likeness(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    with _expecting("torch", "_C._dynamo.guards.TensorGuards"):
        from torch._C._dynamo.guards import TensorGuards

        sizes: list[Any] = [[*value.shape] for value in tensors]
        strides: list[Any] = [[*value.stride()] for value in tensors]
        return TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check


@functools.cache
def check_likeness() -> None:
    with torch.inference_mode(False), torch.no_grad():
        x, y = (torch.ones(shape, dtype=torch.float32, device="cpu") for shape in ((2, 2), (3,)))
        others = [y, x.double(), x.mT, x[:1], x.to("meta"), torch.nn.Parameter(x), x.clone().requires_grad_()]
        others += [x.to_sparse(), torch._neg_view(x)]  # pyright: ignore[reportPrivateImportUsage]
        alike = _likeness((x, y))
        if not alike(x.clone(), y) or any(alike(other, y) for other in others):
            raise _changed("torch", "_C._dynamo.guards.TensorGuards", "it takes different tensors for alike")
