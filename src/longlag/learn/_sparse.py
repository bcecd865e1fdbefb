"""Influence on those states only that a parameter reaches within n steps.

A block's rows share their pattern: the states idx (rows, m) and outputs (rows, o) that each row reaches. With P the
pattern as a matrix of zeros and ones,
    Ẽ(t) = P ⊙ (J(t) Ẽ(t−1) + ∂s(t)/∂θ),    dθ = dy (∂y(t)/∂θ + P_y ⊙ (∂y(t)/∂s(t−1) Ẽ(t−1))).
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor

from longlag.layers import Layer
from longlag.layers.linear import Direct
from longlag.layers.units import UnitGraph
from longlag.learn._dense import Influence, LastStep, Linearised, one_level, width
from longlag.learn._rule import Unsupported
from longlag.learn._state import Values

PROBES = 8  # random points at which derivatives are tested for being zero; relu's are, at half of them


class Reach(NamedTuple):
    """What the rows of a block reach, as indices, padded; ``kept`` is 0 for padding."""

    states: Tensor  # (rows, m)
    kept: Tensor  # (rows, m)
    outputs: Tensor  # (rows, o)
    kept_outputs: Tensor  # (rows, o)


class Sparse(Linearised):
    """O(m² w) time and O(m w) memory per step, m the most states that a parameter reaches; and the Jacobian's O(n²)."""

    def __init__(self, owner: str, layer: Layer, n: int) -> None:
        super().__init__(owner, layer)
        self.n = n
        patterns, self.full = reached(owner, layer, self.carried, n)
        self.reach = {
            key: Reach(*_listed(states, layer.any_weight), *_listed(outputs, layer.any_weight))
            for key, (states, outputs) in patterns.items()
        }

    def units(self) -> tuple[UnitGraph, str, set[str]]:
        if self.n > 1:
            raise Unsupported("of SnAp(n) the engine has n = 1")
        graph, rule, trained = one_level(self, "snap")
        cell = graph.groups[0].cell
        if any(("y", name) not in cell.jacobian for name in (*cell.gates, *cell.params)):
            raise Unsupported(f"not every gate of {cell.name} reaches the output in one step")
        return graph, rule, trained

    def none(self, J: Tensor, blocks: list[Direct]) -> Influence:
        """Ẽ (B, rows, m, width) of every block."""
        return {b.key: J.new_zeros(len(J), *self.reach[b.key].states.shape, width(b)) for b in blocks}

    def advance(self, values: Values, E: Influence, J: Tensor, blocks: list[Direct]) -> Influence:
        new = {}
        for block in blocks:
            states, kept, _, _ = self.reach[block.key]
            within = J[:, states.unsqueeze(2), states.unsqueeze(1)] * kept.unsqueeze(2)  # (B, rows, m, m)
            direct = self._columns(block) * kept
            source = 1.0 if block.source is None else block.source[:, None, None, :]
            if states.shape[1] == 1:
                new[block.key] = within * E[block.key] + direct.unsqueeze(-1) * source  # [SNAP 1 E]
            else:
                new[block.key] = within @ E[block.key] + direct.unsqueeze(-1) * source
        return new

    def _columns(self, block: Direct) -> Tensor:
        """∂(the states reached)/∂row, (B, rows, m)."""
        states = self.reach[block.key].states
        C = block.C
        if block.rows is not None:  # from positions among all states to positions among the block's
            position = torch.zeros(int(block.rows.max()) + 1, dtype=torch.long, device=C.device)
            position[block.rows] = torch.arange(len(block.rows), device=C.device)
            states = position[states]
        return C.mT.gather(2, states.expand(len(C), -1, -1))

    def past(self, E: Influence, last: LastStep, dy: Tensor, ds: Tensor) -> list[Tensor]:
        K, found = last.step.output_jacobian(), []
        for block in last.blocks:
            states, _, outputs, kept = self.reach[block.key]
            back = K[:, outputs.unsqueeze(2), states.unsqueeze(1)]  # (B, rows, o, m)
            errors = ((dy[:, outputs] * kept).unsqueeze(2) @ back).squeeze(2)  # (B, rows, m)
            found.append((errors.unsqueeze(2) @ E[block.key]).sum((0, 2)).flatten())  # [SNAP 1 dθ]
        return found


def reached(owner: str, layer: Layer, paths: list[str], n: int) -> tuple[dict[str, tuple[Tensor, Tensor]], bool]:
    """Block -> the states (rows, n) and the outputs (rows, O) that its rows reach within n steps, as bool.

    And whether that is all that the blocks can ever reach, without exception. Derivatives are taken of a copy of the
    layer, with trained parameters drawn at random, at random points.
    """
    if layer.device.type == "meta":
        raise ValueError(f"{owner}: {layer.class_name} must hold numbers, got parameters on the device meta")
    J, K, columns = _nonzero(layer, paths)
    patterns, full = {}, True
    for key, (direct, direct_y, reachable) in columns.items():
        states, outputs = direct, direct_y
        for _ in range(n - 1):
            outputs = direct_y | (K @ states.float() > 0)
            wider = direct | (J @ states.float() > 0)
            if torch.equal(wider, states):
                break
            states = wider
        patterns[key] = states.mT, outputs.mT
        full &= bool(states[reachable].all()) and torch.equal(outputs, direct_y | (K @ states.float() > 0))
    return patterns, full


def _nonzero(layer: Layer, paths: list[str]) -> tuple[Tensor, Tensor, dict[str, tuple[Tensor, Tensor, Tensor]]]:
    """Where derivatives are not always zero: ∂s/∂s (n, n) and ∂y/∂s (O, n) as 0 and 1; by block ∂s/∂row (n, rows),
    ∂y/∂row (O, rows), and the states (n,) that the block can reach at all."""
    probe = copy.deepcopy(layer).cpu().double()
    probe.engine = "reference"
    generator = torch.Generator().manual_seed(0)
    total: dict[str, Tensor] = {}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):  # a layer may draw random numbers
        for k in range(PROBES):
            for p in probe.parameters():
                if p.requires_grad:  # positive and small: no slope is 0 because a unit is saturated
                    p.copy_(torch.randn(p.shape, generator=generator).abs() / (p.shape[-1] if p.dim() else 1))
            x = _draw((1, layer.input_size), k, generator)
            state = [_draw(part, k, generator) for part in probe.state_spec.batched(1)]
            step = probe.linearise(x, probe.state_spec.whole(state))
            J, blocks = step.influence(paths)
            found = {"J": J, "K": step.output_jacobian()}
            for block in blocks:
                rows = torch.arange(J.shape[1]) if block.rows is None else block.rows
                found[f"C {block.key}"] = J.new_zeros(1, J.shape[1], block.C.shape[-1]).index_copy(1, rows, block.C)
                found[f"y {block.key}"] = block.on_output()
                found[f"r {block.key}"] = J.new_zeros(1, J.shape[1]).index_fill(1, rows, 1.0)
            total = {name: (value[0] != 0) | total.get(name, False) for name, value in found.items()}
    keys = [name[2:] for name in total if name.startswith("C ")]
    columns = {key: (total[f"C {key}"], total[f"y {key}"], total[f"r {key}"]) for key in keys}
    return total["J"].float(), total["K"].float(), columns


def _draw(shape: tuple[int, ...], k: int, generator: torch.Generator) -> Tensor:
    """Random numbers for probe k: all positive, then all negative, then of both signs."""
    value = torch.randn(shape, generator=generator, dtype=torch.float64)
    return value.abs() if k == 0 else -value.abs() if k == 1 else value


def _listed(pattern: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Indices (rows, m) of what is true in each row of the pattern, padded, and 1 or 0 (padding) for each."""
    m = int(pattern.sum(1).max()) if pattern.numel() else 0
    kept, index = pattern.to(torch.uint8).sort(dim=1, descending=True, stable=True)
    return index[:, :m].to(like.device), kept[:, :m].to(like)
