"""Operators of the GPU engine, registered when longlag is imported; Triton is loaded when one runs.

``results`` are the outputs and the tensors that the forward pass keeps for the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longlag.engines._operators import one_by_one

_ARGUMENTS = (
    "str key, str[] names, Tensor[] given, bool reverse, float eps, int heads, "
    "Tensor? mask, Tensor? lengths, Tensor? reset"
)
_library = torch.library.Library("longlag", "FRAGMENT")
_library.define(f"recurrent_gpu({_ARGUMENTS}, bool save) -> Tensor[]")
_library.define(f"recurrent_gpu_backward({_ARGUMENTS}, Tensor[] results, Tensor[] d_results) -> Tensor[]")


def _engine() -> Any:
    from longlag.engines.gpu import operators

    return operators


def _save(ctx: Any, inputs: tuple[Any, ...], output: Sequence[Tensor]) -> None:
    ctx.key, ctx.names, given, ctx.reverse, ctx.eps, ctx.heads, *optional, _ = inputs
    ctx.ends, ctx.given = sum(name.startswith("first_") for name in ctx.names), len(given)
    ctx.save_for_backward(*optional, *given, output[0], *output[1 + ctx.ends :])


def _gradients(ctx: Any, d_results: Sequence[Tensor]) -> tuple[Any, ...]:
    mask, lengths, reset, *tensors = ctx.saved_tensors
    given, results = tensors[: ctx.given], tensors[ctx.given :]
    options, errors = (ctx.reverse, ctx.eps, ctx.heads, mask, lengths, reset), list(d_results[: 1 + ctx.ends])
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # this backward pass will be differentiated
        d = _engine().differentiable_gradients(ctx.key, ctx.names, given, options, errors)
    else:
        d = torch.ops.longlag.recurrent_gpu_backward(ctx.key, ctx.names, given, *options, results, errors)
    return None, None, d, *[None] * 7


for _device in ("CUDA", "CPU"):  # CPU: Triton's interpreter
    _library.impl("recurrent_gpu", lambda *given: _engine().forward(*given), _device)
    _library.impl("recurrent_gpu_backward", lambda *given: _engine().backward(*given), _device)
torch.library.register_fake("longlag::recurrent_gpu", lambda *given: _engine().shapes(*given), lib=_library)
torch.library.register_fake(
    "longlag::recurrent_gpu_backward",
    lambda key, names, given, *rest: [value.new_empty(value.shape) for value in given],
    lib=_library,
)
torch.library.register_autograd("longlag::recurrent_gpu", _gradients, setup_context=_save, lib=_library)
for _name in ("recurrent_gpu", "recurrent_gpu_backward"):
    _rule = one_by_one(getattr(torch.ops.longlag, _name))
    torch.library.register_vmap(f"longlag::{_name}", _rule, lib=_library)
