"""The learners of `online.py` in JAX, as an expert would write them: one jitted ``lax.scan`` over the stream.

Every function below returns ``step(carry, (x, t)) -> carry, loss``: the cell, its influence, a linear read-out, squared
error, SGD. RTRL is written twice. `rtrl` is the short form: Jacobians by ``jax.jacrev``, one product of full matrices.
`structured` uses the equations: E_q ← A_q E_y + Σ_r diag(∂q/∂r) E_r + direct part, two products of H × H for an LSTM.
The benchmark takes the faster of the two. Letters: W, U, b of G gates by H units; E influence; D = I + 1 + H sources.
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Step = Callable[[Any, Any], tuple[Any, Any]]


# ------------------------------------------------------------------------------------------------------------- cells
def elman(nets: Any, past: dict[str, Any]) -> dict[str, Any]:
    return {"y": jnp.tanh(nets[0])}


def lstm(nets: Any, past: dict[str, Any]) -> dict[str, Any]:
    i, f, g, o = nets
    c = jax.nn.sigmoid(f) * past["c"] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return {"y": jax.nn.sigmoid(o) * jnp.tanh(c), "c": c}


def gru(nets: Any, past: dict[str, Any]) -> dict[str, Any]:
    r, z, n, m = nets  # n reads the input only, m the outputs only
    z = jax.nn.sigmoid(z)
    return {"y": (1 - z) * jnp.tanh(n + jax.nn.sigmoid(r) * m) + z * past["y"]}


CELLS = {"elman": (elman, ("y",)), "lstm": (lstm, ("y", "c")), "gru": (gru, ("y",))}
READS = {"gru": ((True, True), (True, True), (True, False), (False, True))}  # (x, y) for every gate


def weights_of(layer: Any, kind: str) -> dict[str, Any]:
    """A layer's weights by gate: W (I, H) and U (H, H), zeros where a gate does not read, and both biases."""
    H = layer.hidden_size
    values = {name: jnp.asarray(p.detach().numpy()) for name, p in layer.named_parameters()}
    reads = READS.get(kind) or ((True, True),) * (len(values["weight_ih_l0"]) // H)

    def by_gate(name: str, which: int) -> list[Any]:
        rows = iter(values[name].reshape(-1, H, *values[name].shape[1:]))
        return [next(rows) if read[which] else None for read in reads]

    both = {"W": 0, "U": 1, "b": 0, "d": 1}
    named = {"W": "weight_ih_l0", "U": "weight_hh_l0", "b": "bias_ih_l0", "d": "bias_hh_l0"}
    return {key: by_gate(named[key], which) for key, which in both.items()}


def nets_of(p: dict[str, Any], x: Any, y: Any) -> list[Any]:
    nets = []
    for W, U, b, d in zip(*(p[key] for key in "WUbd")):
        net = 0.0 if W is None else W @ x + b
        nets.append(net if U is None else net + U @ y + d)
    return nets


# --------------------------------------------------------------------------------------------------------- learning
def head(r: dict[str, Any], y: Any, t: Any, lr: float) -> tuple[Any, Any, Any]:
    """Loss, dL/dy and the read-out after its update."""
    error = r["V"] @ y + r["c"] - t
    new = {"V": r["V"] - lr * error[:, None] * y, "c": r["c"] - lr * error}
    return 0.5 * jnp.sum(error**2), error @ r["V"], new


def descend(p: Any, g: Any, lr: float) -> Any:
    return jax.tree.map(lambda a, b: a - lr * b, p, g)


def rtrl(kind: str, H: int, lr: float) -> tuple[Step, Callable[[Any], Any]]:
    """Jacobians by ``jacrev``, E ← J E + D."""
    cell, parts = CELLS[kind]

    def advance(p: Any, s: Any, x: Any) -> Any:
        past = dict(zip(parts, jnp.split(s, len(parts))))
        return jnp.concatenate([cell(nets_of(p, x, past["y"]), past)[q] for q in parts])

    def step(carry: Any, xt: Any) -> tuple[Any, Any]:
        p, r, s, E = carry
        x, t = xt
        J, D = jax.jacrev(advance, 1)(p, s, x), jax.jacrev(advance, 0)(p, s, x)
        E = jax.tree.map(lambda e, d: jnp.tensordot(J, e, 1) + d, E, D)
        s = advance(p, s, x)
        loss, dy, r = head(r, s[:H], t, lr)
        return (descend(p, jax.tree.map(lambda e: jnp.tensordot(dy, e[:H], 1), E), lr), r, s, E), loss

    def start(p: Any) -> Any:
        S = len(parts) * H
        return jnp.zeros(S), jax.tree.map(lambda a: jnp.zeros((S, *a.shape)), p)

    return step, start


def structured(kind: str, H: int, lr: float, cut: bool = False) -> tuple[Step, Callable[[Any], Any]]:
    """E_q ← A_q E_y + Σ_r diag(∂q/∂r) E_r + ∂q/∂net ⊗ source; ``cut``: without A_q, O(w) traces (TruncatedRTRL)."""
    cell, parts = CELLS[kind]
    units = jnp.arange(H)

    def local(nets: Any, past: Any) -> tuple[Any, Any]:
        """New values, and all partials: units are independent, so a product with ones gives the diagonals."""
        new, pull = jax.vjp(cell, nets, past)
        ones = {q: {r: jnp.ones(H) if r == q else jnp.zeros(H) for r in parts} for q in parts}
        return new, {q: pull(ones[q]) for q in parts}

    def sources(p: Any, x: Any, y: Any) -> list[Any]:
        """What every gate's weights and bias are multiplied by."""
        one = jnp.ones(1)
        pieces = [([] if W is None else [x]) + ([] if U is None else [y]) for W, U in zip(p["W"], p["U"])]
        return [jnp.concatenate([*piece, one]) for piece in pieces]

    def step(carry: Any, xt: Any) -> tuple[Any, Any]:
        p, r, s, E = carry
        x, t = xt
        nets = nets_of(p, x, s["y"])
        new, partials = local(nets, s)
        source = sources(p, x, s["y"])
        before, E = E, {}
        for q in parts:
            of_nets, of_past = partials[q]
            folded = sum(d[:, None] * U for d, U in zip(of_nets, p["U"]) if U is not None)
            E[q] = []
            for g, a in enumerate(source):
                direct = of_nets[g][:, None] * a
                if cut:
                    E[q].append(sum((of_past[k][:, None] * before[k][g] for k in parts), start=direct))
                else:
                    e = (folded @ before["y"][g].reshape(H, -1)).reshape(before["y"][g].shape)
                    e = sum((of_past[k][:, None, None] * before[k][g] for k in parts), start=e)
                    E[q].append(e.at[units, units].add(direct))
        loss, dy, r = head(r, new["y"], t, lr)
        G = [dy[:, None] * e if cut else jnp.tensordot(dy, e, 1) for e in E["y"]]
        return (descend(p, gradients(p, G, len(x)), lr), r, new, E), loss

    def gradients(p: Any, G: list[Any], I: int) -> Any:
        W = [None if w is None else g[:, :I] for w, g in zip(p["W"], G)]
        U = [None if u is None else g[:, -1 - H : -1] for u, g in zip(p["U"], G)]
        b = [None if w is None else g[:, -1] for w, g in zip(p["W"], G)]
        d = [None if u is None else g[:, -1] for u, g in zip(p["U"], G)]
        return {"W": W, "U": U, "b": b, "d": d}

    def start(p: Any) -> Any:
        widths = [(0 if W is None else W.shape[1]) + (0 if U is None else H) + 1 for W, U in zip(p["W"], p["U"])]
        shape = (H,) if cut else (H, H)
        return {q: jnp.zeros(H) for q in parts}, {q: [jnp.zeros((*shape, w)) for w in widths] for q in parts}

    return step, start


def local(lr: float) -> tuple[Step, Callable[[Any], Any]]:
    """Units with local feedback of their activation, y(t) = tanh((W x + b + v y(t−1)) / 2): one trace per weight."""

    def step(carry: Any, xt: Any) -> tuple[Any, Any]:
        p, r, y, E = carry
        x, t = xt
        new = jnp.tanh((p["W"] @ x + p["b"] + p["v"] * y) / 2)
        d = (1 - new**2) / 2
        j = d * p["v"]
        E = {"W": j[:, None] * E["W"] + d[:, None] * x, "b": j * E["b"] + d, "v": j * E["v"] + d * y}
        loss, dy, r = head(r, new, t, lr)
        g = {"W": dy[:, None] * E["W"], "b": dy * E["b"], "v": dy * E["v"]}
        return (descend(p, g, lr), r, new, E), loss

    return step, lambda p: (jnp.zeros(len(p["b"])), jax.tree.map(jnp.zeros_like, p))


# --------------------------------------------------------------------------------------------------------------- runs
def runs(kind: str, rule: str, layer: Any, readout: Any, lr: float) -> dict[str, Callable[[Any, Any], np.ndarray]]:
    """``run(xs, ts) -> losses`` from the layer's present weights, by the name of the way it is written."""
    H = layer.hidden_size
    r = {"V": jnp.asarray(readout.weight.detach().numpy()), "c": jnp.asarray(readout.bias.detach().numpy())}
    if kind == "local":
        p = {"W": layer.weight_ih_l0, "b": layer.bias_ih_l0, "v": layer.v_l0}
        p = {key: jnp.asarray(value.detach().numpy()) for key, value in p.items()}
        ways = {"traces": local(lr)}
    else:
        p = weights_of(layer, kind)
        if rule == "TruncatedRTRL":
            ways = {"traces": structured(kind, H, lr, cut=True)}
        else:
            ways = {"jacrev": rtrl(kind, H, lr), "structured": structured(kind, H, lr)}

    def runner(step: Step, start: Callable[[Any], Any]) -> Callable[[Any, Any], np.ndarray]:
        @jax.jit
        def scan(xs: Any, ts: Any) -> Any:
            return jax.lax.scan(step, (p, r, *start(p)), (xs, ts))[1]

        return lambda xs, ts: np.asarray(scan(jnp.asarray(xs), jnp.asarray(ts)))

    return {name: runner(*way) for name, way in ways.items()}
