"""The figures behind docs/fidelity.md: how much the ways to compute every named cell differ, in float64.

    python tools/fidelity.py            writes docs/fidelity.csv (some minutes if kernels must be compiled)
    python tools/fidelity.py --new      measures the cells that the file does not have, and keeps the rest

For each cell, a layer of 5 units runs over 7 steps of 3 ragged sequences with resets. Differences are the largest over
outputs, final states and all gradients, relative to the largest entry of each tensor.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import longlag as ll
from longlag import cells
from longlag.cells import Cell
from longlag.learn import RTRL

FILE = Path(__file__).resolve().parents[1] / "docs" / "fidelity.csv"
T, B, I, H = 7, 3, 3, 5
TORCH: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU, "elman": nn.RNN}
PACKAGES = {  # what `make peers` compares the cell with
    "cfc": "ncps",
    "slstm": "flashrnn",
    "snn_leaky": "snntorch",
    "snn_synaptic": "snntorch",
    "lif": "spikingjelly",
    "ctrnn": "nn4n",
    "gru_d": "pypots",
}


def names() -> list[str]:
    """All named cells; factories of cells are left out."""
    return [name for name in dir(cells) if isinstance(getattr(cells, name, None), Cell)]


def apart(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest difference, relative to the largest entry of each tensor."""
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if b.numel()]
    return max(((a - b).abs().max() / b.abs().max().clamp(min=1e-3)).item() for a, b in pairs)


class Problem:
    """A layer of a cell, and what it is given."""

    def __init__(self, cell: Cell) -> None:
        self.draw, self.cell = torch.Generator().manual_seed(0), cell
        torch.manual_seed(0)
        self.layer = ll.Recurrent(cell, I, H, dtype=torch.float64)
        self.x = self.randn(T, B, I).requires_grad_()
        self.numbers = {n: self.randn(T, B).abs() for n in cell.per_step} | {n: self.randn(T, B) for n in cell.noise}
        self.slopes = self.randn(T, B, H)
        self.given = {"lengths": torch.tensor([7, 4, 6]), "reset": self.randn(T, B) > 1}

    def randn(self, *shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=self.draw)

    def results(self, engine: str) -> list[Tensor]:
        """Outputs, final states and gradients."""
        self.layer.engine = engine
        y, state = self.layer(self.x, **self.given, **self.numbers)
        wanted = [self.x, *self.layer.parameters()]
        grads = torch.autograd.grad((y * self.slopes).sum(), wanted, allow_unused=True)
        ends = [state] if isinstance(state, Tensor) else list(state)
        return [v.detach() for v in [y, *ends, *(g for g in grads if g is not None)]]

    def steps(self) -> list[Tensor]:
        """Outputs of single steps."""
        state, found = None, []
        with torch.no_grad():
            for t in range(T):
                y, state = self.layer.step(self.x[t], state, **{name: value[t] for name, value in self.numbers.items()})
                found.append(y)
        return [torch.stack(found)]

    def real_time(self) -> tuple[list[Tensor], list[Tensor]]:
        """Gradients of RTRL and of autograd, without lengths and resets."""
        self.layer.engine = "reference"
        joined = ll.layers.Joined(self.layer) if self.numbers else self.layer
        features = [value.unsqueeze(-1) for value in self.numbers.values()]
        x = torch.cat([self.x.detach(), *features], -1)
        rule, state, total = RTRL(), None, {}
        trace = rule.start(joined, B)
        for x_t, d in zip(x, self.slopes):
            _, state, trace = rule.step(joined, x_t, state, trace)
            for name, value in rule.gradients(joined, trace, d).items():
                total[name] = total.get(name, 0) + value
        y, _ = joined(x)
        weights = dict(joined.named_parameters())
        exact = torch.autograd.grad((y * self.slopes).sum(), [weights[name] for name in total])
        return list(total.values()), list(exact)


def row(name: str) -> dict[str, str]:
    """The figures of one cell."""
    problem = Problem(getattr(cells, name))
    reference = problem.results("reference")
    found = {"cell": name}
    try:
        found["CPU engine and reference"] = f"{apart(problem.results('cpu'), reference):.0e}"
    except ValueError as refusal:
        found["CPU engine and reference"] = str(refusal).partition(": ")[2].partition(";")[0]
    problem.layer.engine = "auto"
    with torch.no_grad():
        whole = problem.layer(problem.x, **problem.numbers)[0]
    found["single steps and whole sequence"] = f"{apart(problem.steps(), [whole]):.0e}"
    found["RTRL and autograd through time"] = f"{apart(*problem.real_time()):.0e}"
    found["torch.nn"] = "–"
    if name in TORCH:
        theirs = TORCH[name](I, H, dtype=torch.float64)
        theirs.load_state_dict(problem.layer.state_dict())
        found["torch.nn"] = f"{apart([whole], [theirs(problem.x)[0]]):.0e}"
    found["author's package (make peers)"] = PACKAGES.get(name, "–")
    return found


def main() -> None:
    kept: dict[str, dict[str, str]] = {}
    if "--new" in sys.argv[1:]:
        with FILE.open(encoding="utf-8") as file:
            kept = {line["cell"]: line for line in csv.DictReader(file)}
    rows = []
    for name in names():
        rows.append(kept.get(name) or row(name))
        print(*rows[-1].values(), sep="  ", flush=True)
    with FILE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
