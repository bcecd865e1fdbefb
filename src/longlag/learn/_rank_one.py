"""An unbiased estimate of the influence by one outer product: s̃ ⊗ θ̃, whose mean over random signs is ∂s/∂θ."""

from __future__ import annotations

import torch
from torch import Tensor

from longlag.layers import Layer
from longlag.layers.linear import Direct
from longlag.learn._dense import Influence, LastStep, Linearised, at, width
from longlag.learn._state import Values

STATE = "s̃"  # its key among those of the blocks
TINY = 1e-7  # added to norms and their ratios, as in the paper


class RankOne(Linearised):
    """s̃ (B, n) and θ̃, block by block (B, rows · width): O(w) numbers.

    Args:
        generator: gives the seed of each trace's random signs; None: torch's own.
    """

    def __init__(self, owner: str, layer: Layer, generator: torch.Generator | None) -> None:
        super().__init__(owner, layer)
        self.generator = generator

    def start(self, batch: int) -> Values:
        device = None if self.generator is None else self.generator.device
        seed = int(torch.randint(2**62, (), generator=self.generator, device=device))
        return {**super().start(batch), "seed": seed, "drawn": 0}

    def none(self, J: Tensor, blocks: list[Direct]) -> Influence:
        theta = {block.key: J.new_zeros(len(J), block.C.shape[-1] * width(block)) for block in blocks}
        return {STATE: J.new_zeros(J.shape[:2]), **theta}

    def advance(self, values: Values, E: Influence, J: Tensor, blocks: list[Direct]) -> Influence:
        if not blocks:
            return E
        nu = signs(values["seed"] + values["drawn"], J)
        values["drawn"] += 1
        direct = {block.key: _direct(block, at(nu, block)) for block in blocks}  # νᵀ ∂s/∂θ
        pushed = (J @ E[STATE].unsqueeze(-1)).squeeze(-1)
        theta = {key: value for key, value in E.items() if key != STATE}
        rho_0 = _ratio(_norm(theta), pushed.norm(dim=1))  # [UORO 1 ρ0]
        rho_1 = _ratio(_norm(direct), nu.norm(dim=1))  # [UORO 1 ρ1]
        new = {key: value / rho_0 + direct[key] / rho_1 for key, value in theta.items()}  # [UORO 1 θ̃]
        return {STATE: rho_0 * pushed + rho_1 * nu, **new}  # [UORO 1 s̃]

    def past(self, E: Influence, last: LastStep, dy: Tensor, ds: Tensor) -> list[Tensor]:
        scale = (ds * E[STATE]).sum(1)
        return [scale @ E[block.key] for block in last.blocks]  # [UORO 1 dθ]


def signs(seed: int, like: Tensor) -> Tensor:
    """ν (B, n): ±1 with equal probability, for J (B, n, n)."""
    drawn = torch.randint(2, like.shape[:2], generator=torch.Generator().manual_seed(seed))
    return (2 * drawn - 1).to(like)


def _direct(block: Direct, nu: Tensor) -> Tensor:
    """νᵀ ∂s/∂θ of a block, (B, rows · width)."""
    by_row = (nu.unsqueeze(1) @ block.C).squeeze(1)
    return by_row if block.source is None else (by_row.unsqueeze(-1) * block.source.unsqueeze(1)).flatten(1)


def _norm(vectors: Influence) -> Tensor:
    """‖·‖ of all blocks together, (B,)."""
    return torch.stack([v.norm(dim=1) for v in vectors.values()]).norm(dim=0)


def _ratio(of: Tensor, to: Tensor) -> Tensor:
    """√(of / to), (B, 1), positive."""
    return ((of / (to + TINY)).sqrt() + TINY).unsqueeze(-1)
