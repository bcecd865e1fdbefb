"""The CPU kernels as torch operators, and the choice between them and plain torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longlag import engines
from longlag.structured.chain import Chain


def choose(request: str, c: Chain, *, twice: bool = False) -> tuple[str, str]:
    """The engine for a call, and the reason; ``twice`` if second derivatives may be needed."""
    engine, why = engines.choose(request, *c, name="the emissions")
    if request == "auto" and engine == "cpu" and twice:
        return "reference", "the kernels have no second derivatives"
    return engine, why


def run(name: str, *tensors: Tensor) -> Any:
    """Call a kernel of `_crf_cpu` on contiguous float64 (or bool) arrays."""
    from longlag.structured import _crf_cpu  # loads Numba

    return getattr(_crf_cpu, name)(*(_array(x if x.dtype == torch.bool else x.double()) for x in tensors))


def _array(x: Tensor) -> Any:
    return x.detach().resolve_neg().contiguous().numpy()


def _check(emissions: Tensor, mask: Tensor, a_s: Tensor, a_e: Tensor, A: Tensor, g: Tensor | None = None) -> None:
    """Check the arguments of an operator: kernels would read beyond the end of a shorter tensor."""
    if emissions.dim() != 3:
        raise engines.ShapeError(f"CRF: emissions must be (B, T, K), got shape {tuple(emissions.shape)}")
    N, T, K = emissions.shape
    right = {
        "mask": (N, T),
        "start_transitions": (K,),
        "end_transitions": (K,),
        "transitions": (K, K),
        "gradient": (N,),
    }
    for (name, shape), value in zip(right.items(), (mask, a_s, a_e, A, g)):
        if value is not None and value.shape != shape:
            raise engines.ShapeError(f"CRF: {name} must have shape {shape}, got {tuple(value.shape)}")
    if mask.dtype != torch.bool:
        raise engines.DtypeError(f"CRF: mask must be torch.bool, got {mask.dtype}")


def _log_partition(emissions: Tensor, mask: Tensor, a_s: Tensor, a_e: Tensor, A: Tensor) -> Tensor:
    _check(emissions, mask, a_s, a_e, A)
    return torch.from_numpy(run("log_partition", emissions, mask, a_s, a_e, A)).to(emissions.dtype)


def _gradient(g: Tensor, emissions: Tensor, mask: Tensor, a_s: Tensor, a_e: Tensor, A: Tensor) -> tuple[Tensor, ...]:
    _check(emissions, mask, a_s, a_e, A, g)
    found = run("gradient", g, emissions, mask, a_s, a_e, A)
    return tuple(torch.from_numpy(x).to(emissions.dtype) for x in found)


def _viterbi(emissions: Tensor, mask: Tensor, a_s: Tensor, a_e: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    _check(emissions, mask, a_s, a_e, A)
    paths, scores = run("viterbi", emissions, mask, a_s, a_e, A)
    return torch.from_numpy(paths), torch.from_numpy(scores).to(emissions.dtype)


def _log_partition_fake(emissions, mask, a_s, a_e, A):
    return emissions.new_empty(emissions.shape[0])


def _gradient_fake(g, emissions, mask, a_s, a_e, A):
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (emissions, a_s, a_e, A))


def _viterbi_fake(emissions, mask, a_s, a_e, A):
    return emissions.new_empty(emissions.shape[:2], dtype=torch.long), emissions.new_empty(emissions.shape[0])


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _log_partition_backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    dB, d_s, d_e, dA = gradient(g, *ctx.saved_tensors)
    return dB, None, d_s, d_e, dA


def _no_second_derivative(ctx: Any, *g: Tensor) -> None:
    raise NotImplementedError("CRF: engine 'cpu' has no second derivatives, use engine='reference'")


# Defined through `Library`: `custom_op` would load torch._dynamo, a second, at the first call.
_library = torch.library.Library("longlag", "FRAGMENT")
_CHAIN = "Tensor emissions, Tensor mask, Tensor a_s, Tensor a_e, Tensor A"
for _name, _arguments, _results, _implementation, _fake in (
    ("crf_log_partition", _CHAIN, "Tensor", _log_partition, _log_partition_fake),
    ("crf_gradient", f"Tensor g, {_CHAIN}", "(Tensor, Tensor, Tensor, Tensor)", _gradient, _gradient_fake),
    ("crf_viterbi", _CHAIN, "(Tensor, Tensor)", _viterbi, _viterbi_fake),
):
    _library.define(f"{_name}({_arguments}) -> {_results}")
    _library.impl(_name, _implementation, "CPU")
    torch.library.register_fake(f"longlag::{_name}", _fake, lib=_library)
    _rule = engines.one_by_one(getattr(torch.ops.longlag, _name))
    torch.library.register_vmap(f"longlag::{_name}", _rule, lib=_library)
torch.library.register_autograd(
    "longlag::crf_log_partition", _log_partition_backward, setup_context=_save, lib=_library
)
torch.library.register_autograd("longlag::crf_gradient", _no_second_derivative, lib=_library)

log_partition = torch.ops.longlag.crf_log_partition  # log Z (B,)
gradient = torch.ops.longlag.crf_gradient  # of Σ g log Z by emissions, a_s, a_e and A
viterbi = torch.ops.longlag.crf_viterbi  # best paths (B, T) and their scores (B,)


def marginals(chain: Chain) -> Tensor:
    """P(y_t = k) = ∂ log Z / ∂B[t, k] (B, T, K)."""
    return gradient(chain.emissions.new_ones(len(chain.emissions)), *chain)[0]
