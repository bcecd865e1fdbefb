"""Layers, learning rules, CRF and flow on a GPU against the same on the CPU, in float64. CI has no GPU: run by hand.

    PYTHONPATH=src:tests python tools/device_check.py [device]

Every difference is printed; the exit status is the number of checks that failed.
"""

import sys
import traceback
from collections.abc import Callable
from typing import Any

import helpers
import torch
from torch import Tensor

import longlag as ll
from longlag import flow, learn

DEVICE = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
TOLERANCE = 1e-10  # relative to the largest entry
RULES = (learn.BPTT, learn.RTRL, learn.TruncatedRTRL, learn.LocalForward)
failed: list[str] = []


def check(name: str, run: Callable[..., None], *arguments: Any) -> None:
    """Run a check and say how it went."""
    try:
        run(*arguments)
    except Exception:
        failed.append(name)
        print(f"FAILED {name}\n{traceback.format_exc(limit=-4)}")
    else:
        print(f"ok     {name}")


def flat(values: Any) -> list[Tensor]:
    """The tensors in nested tuples and lists."""
    if isinstance(values, Tensor):
        return [values]
    return [tensor for value in values for tensor in flat(value)]


def same(there: Any, here: Any) -> None:
    """Refuse results that are not on the device, or differ."""
    for a, b in zip(flat(there), flat(here), strict=True):
        if a.device.type != DEVICE.type:
            raise AssertionError(f"a result is on {a.device}")
        error = helpers.error(a.cpu(), b)
        if not error < TOLERANCE:
            raise AssertionError(f"differs by {error:.1e}")


def twins(name: str) -> list[Any]:
    """The same layer here and there."""
    here, there = helpers.LAYERS[name](3, 4), helpers.LAYERS[name](3, 4, engine="auto")
    there.load_state_dict(here.state_dict())
    return [here, there.to(DEVICE)]


def layer(name: str) -> None:
    """Outputs, states and gradients; with lengths, with resets; one step."""
    pair, x = twins(name), helpers.randn(7, 2, 3)
    reset = torch.zeros(7, 2, dtype=torch.bool)
    reset[3, 0] = True
    for options in ({}, {"lengths": torch.tensor([7, 4])}, {"reset": reset}):
        results = []
        for one in pair:
            place = one._weight.device
            x_one = x.detach().clone().to(place).requires_grad_()
            one.zero_grad()
            y, state = one(x_one, **{key: value.to(place) for key, value in options.items()})
            y.square().sum().backward()
            results.append([y, state, x_one.grad, [p.grad for p in one.parameters() if p.grad is not None]])
        same(results[1], results[0])
    if not pair[0].bidirectional:
        here, there = pair
        same(there.step(x[0].to(DEVICE)), here.step(x[0]))


def rule(name: str, kind: Any) -> None:
    """Gradients of an online rule, where it serves the layer."""
    x, sums = helpers.randn(5, 2, 3), []
    for one in twins(name):
        method, state, total = kind(), None, {}
        try:
            trace = method.start(one, 2)
        except (TypeError, ValueError):  # not for this layer
            return
        for x_t in x.to(one._weight.device):
            y, state, trace = method.step(one, x_t, state, trace)
            for key, gradient in method.gradients(one, trace, torch.ones_like(y)).items():
                total[key] = total.get(key, 0) + gradient
        sums.append([total[key] for key in sorted(total)])
    same(sums[1], sums[0])


def crf() -> None:
    """Likelihood, marginals, k-best and decoding under a mask with holes; half precision."""
    here, there = ll.CRF(5, dtype=torch.float64), ll.CRF(5, dtype=torch.float64)
    there.load_state_dict(here.state_dict())
    there.to(DEVICE)
    emissions, tags, mask = helpers.randn(3, 6, 5), torch.randint(5, (3, 6)), torch.rand(3, 6) < 0.8
    e, t, m = (value.to(DEVICE) for value in (emissions, tags, mask))
    same(there(e, t, m, reduction="none"), here(emissions, tags, mask, reduction="none"))
    same(there.marginals(e, m), here.marginals(emissions, mask))
    assert there.decode(e, m) == here.decode(emissions, mask)
    assert there.decode(e, m, k=3) == here.decode(emissions, mask, k=3)
    loss = -ll.CRF(5).to(DEVICE)(e.half(), t, m)
    loss.backward()
    assert loss.isfinite()


def compiled() -> None:
    """torch.compile in one graph."""
    one, x = ll.LSTM(8, 16, dtype=torch.float64).to(DEVICE), helpers.randn(5, 2, 8).to(DEVICE)
    same(torch.compile(one, fullgraph=True)(x)[0], one(x)[0].cpu())


def error_flow() -> None:
    """The gradient-flow lab."""
    here, there = twins("elman")
    x = helpers.randn(6, 1, 3)
    found, wanted = flow.error_flow(there, x.to(DEVICE)).norm, flow.error_flow(here, x).norm  # both come to the CPU
    helpers.same(found, wanted, tolerance=TOLERANCE)


if __name__ == "__main__":
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, {DEVICE}")
    for one in helpers.LAYERS:
        check(f"layer {one}", layer, one)
    for one in helpers.ONE_WAY:
        for each in RULES:
            check(f"{each.__name__} on {one}", rule, one, each)
    for last in (crf, compiled, error_flow):
        check(last.__name__, last)
    print(f"{len(failed)} failed")
    sys.exit(len(failed))
