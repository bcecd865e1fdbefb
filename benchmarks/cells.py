"""Cells of the shelf beside their authors' packages: forward + backward, one thread, float32, the same numbers.

    .venv-peers/bin/python benchmarks/cells.py [seconds per row] [part of a row's name]

`make peers` makes the environment. Both sides compute everything from x to the gradients of all parameters, given the
gradient of the outputs; neurons that have no matrices get an ``nn.Linear`` over the whole sequence. Outputs and the
gradients of the input weights are compared first, and a row whose numbers differ is not timed. A flashrnn row compares
outputs only where its own backward pass leaves terms out, and says so.
"""

# pyright: reportMissingImports=false
# the packages are in an environment of their own

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _rows import append
from torch import Tensor, nn

import longlag as ll
from longlag import cells
from longlag.cli.bench import measure, middle

Size = tuple[int, int, int, int]  # T, B, I, H
SIZES: list[Size] = [(100, 1, 8, 16), (100, 16, 32, 64), (100, 32, 64, 128)]
HEADS = 4


class Pair(NamedTuple):
    """Two ways to the same outputs; the first parameter of each is the weight that is compared."""

    name: str
    ours: Callable[[], Tensor]
    theirs: Callable[[], Tensor]
    our_parameters: list[Tensor]
    their_parameters: list[Tensor]
    rows: slice = slice(None)  # of our first parameter, which theirs holds
    gradients: bool = True  # whether the gradients are equal, too


def pairs(size: Size) -> Iterator[Pair]:
    torch.manual_seed(0)
    x = torch.randn(*size[:3])
    yield from (cfc(x, size), leaky(x, size), recurrent_leaky(x, size), synaptic(x, size), spikingjelly(x, size))
    yield from (gru_d(x, size), ctrnn(x, size))
    yield from (flashrnn(x, size, backend) for backend in ("vanilla", "vanilla_fwbw"))


def cfc(x: Tensor, size: Size) -> Pair:
    from ncps.torch import CfC

    theirs = CfC(*size[2:], backbone_layers=0, backbone_units=1)
    ours, batch_first = ll.layers.from_ncps(theirs), x.transpose(0, 1).contiguous()
    first: Any = theirs.rnn_cell.ff1.weight
    rest = [p for p in theirs.parameters() if p is not first]
    return Pair(
        "ncps CfC", lambda: ours(batch_first, dt=1.0)[0], lambda: theirs(batch_first)[0],
        list(ours.parameters()), [first, *rest], slice(size[3]),
    )  # fmt: skip


def neurons(name: str, size: Size, cell: ll.cells.Cell, x: Tensor, run: Any, own: list[Tensor]) -> Pair:
    """Neurons after a Linear; ``run(currents)`` gives their spikes, ``own`` are trained parameters of theirs."""
    linear, ours = nn.Linear(*size[2:]), ll.Recurrent(cell, *size[2:])
    values = {"weight_ih": linear.weight, "bias_ih": linear.bias, "beta": 0.8, "alpha": 0.7}
    values |= {"weight_hh": own[0], "bias_hh": 0.0} if cell.dense else {}
    with torch.no_grad():
        linear.bias.add_(0.7)
        for name_of, parameter in ours.named_parameters():
            parameter.copy_(torch.as_tensor(values[name_of.removesuffix("_l0")]))
    parameters = [linear.weight, linear.bias, *own]
    return Pair(name, lambda: ours(x)[0], lambda: run(linear(x)), list(ours.parameters()), parameters)


def alone(cell: ll.cells.Cell, **declared: Any) -> ll.cells.Cell:
    """The same equations for units that do not read each other."""
    return ll.cell(gates="a", dense=False, fixed={"threshold": 1.0}, **declared)(cell.equations)


def leaky(x: Tensor, size: Size) -> Pair:
    import snntorch

    neuron = snntorch.Leaky(beta=torch.full((size[3],), 0.8), learn_beta=True, reset_mechanism="subtract")

    def run(currents: Tensor) -> Tensor:
        v, spikes = torch.zeros_like(currents[0]), []
        for a in currents:
            s, v = neuron(a, v)
            spikes.append(s)
        return torch.stack(spikes)

    cell = alone(cells.snn_leaky, states="v", params={"beta": 0.8})
    return neurons("snntorch Leaky", size, cell, x, run, [neuron.beta])


def recurrent_leaky(x: Tensor, size: Size) -> Pair:
    import snntorch

    neuron: Any = snntorch.RLeaky(
        beta=torch.full((size[3],), 0.8), learn_beta=True, all_to_all=True, linear_features=size[3],
        reset_mechanism="subtract",
    )  # fmt: skip
    with torch.no_grad():
        neuron.recurrent.bias.zero_()

    def run(currents: Tensor) -> Tensor:
        s = v = torch.zeros_like(currents[0])
        spikes = []
        for a in currents:
            s, v = neuron(a, s, v)
            spikes.append(s)
        return torch.stack(spikes)

    own = [neuron.recurrent.weight, neuron.recurrent.bias, neuron.beta]
    return neurons("snntorch RLeaky", size, cells.snn_leaky, x, run, own)


def synaptic(x: Tensor, size: Size) -> Pair:
    import snntorch

    rates = {"alpha": torch.full((size[3],), 0.7), "beta": torch.full((size[3],), 0.8)}
    neuron = snntorch.Synaptic(**rates, learn_alpha=True, learn_beta=True, reset_mechanism="subtract")

    def run(currents: Tensor) -> Tensor:
        q = v = torch.zeros_like(currents[0])
        spikes = []
        for a in currents:
            s, q, v = neuron(a, q, v)
            spikes.append(s)
        return torch.stack(spikes)

    cell = alone(cells.snn_synaptic, states="q v", params={"alpha": 0.7, "beta": 0.8})
    return neurons("snntorch Synaptic", size, cell, x, run, [neuron.alpha, neuron.beta])


def spikingjelly(x: Tensor, size: Size) -> Pair:
    from spikingjelly.activation_based import neuron, surrogate

    node = neuron.LIFNode(tau=2.0, surrogate_function=surrogate.ATan(), step_mode="m", v_reset=0.0)

    def run(currents: Tensor) -> Tensor:
        node.reset()
        return node(currents)

    cell = ll.cell(gates="a", states="v", fixed={"tau": 2.0, "threshold": 1.0}, dense=False)(cells.lif.equations)
    return neurons("spikingjelly LIF", size, cell, x, run, [])


def gru_d(x: Tensor, size: Size) -> Pair:
    """As in peers/test_cells.py, with values that are all observed: then theirs reads x itself."""
    (folder,) = importlib.util.find_spec("pypots").submodule_search_locations  # pyright: ignore
    file = Path(folder, "nn/modules/grud/__init__.py")
    spec: Any = importlib.util.spec_from_file_location("grud", file, submodule_search_locations=[str(file.parent)])
    module = sys.modules["grud"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    T, B, inputs, H = size
    theirs: Any = module.BackboneGRUD(T, inputs, H)
    values, gaps = x.transpose(0, 1).contiguous(), torch.rand(B, T, inputs)
    seen = torch.ones_like(values)
    ours: Any = ll.Recurrent(cells.gru_d, 2 * inputs, H, batch_first=True)
    W, U, b, b_hh = (getattr(theirs.rnn_cell, name) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    with torch.no_grad():
        ours.weight_ih_l0.copy_(torch.cat([W[:, :inputs], W[:, inputs + H :]], 1))
        ours.weight_hh_l0.copy_(torch.cat([W[:, inputs : inputs + H], U[2 * H :]]))
        ours.weight_hh_l0[: 2 * H] += U[: 2 * H]
        ours.bias_ih_l0.copy_(b)
        ours.bias_hh_l0.copy_(torch.cat([b_hh[: 2 * H], torch.zeros(H), b_hh[2 * H :]]))
        ours.w_l0.fill_(1.0)
        ours.b_l0.copy_(theirs.temp_decay_h.b)
    decay = torch.nn.Parameter(theirs.temp_decay_h.W.detach().clone())

    def run() -> Tensor:
        delta = torch.nn.functional.linear(gaps, decay)
        y, _ = ours(torch.cat([values, seen], -1), delta=delta)
        return torch.exp(-torch.relu(delta[:, 1:] + ours.b_l0)) * y[:, :-1]  # theirs collects h, not y

    def wanted() -> Tensor:
        return theirs(values, seen, gaps, values[0, 0], values)[0][:, 1:]

    own = [p for name, p in theirs.named_parameters() if "decay_x" not in name and p is not theirs.temp_decay_h.W]
    return Pair("pypots GRU-D", run, wanted, [decay, *ours.parameters()], [theirs.temp_decay_h.W, *own])


def ctrnn(x: Tensor, size: Size) -> Pair:
    from nn4n.model import CTRNN

    noise = {"preact_noise": 0, "postact_noise": 0}
    part: Any = CTRNN(dims=[*size[2:], 2], activation="relu", tau=10, dt=2, **noise).recurrent_layer
    ours: Any = ll.Recurrent(cells.ctrnn, *size[2:], tau=10, dt=2).eval()
    with torch.no_grad():
        ours.weight_ih_l0.copy_(part.input_layer.weight)
        ours.weight_hh_l0.copy_(part.hidden_layer.weight)
        ours.bias_ih_l0.copy_(part.hidden_layer.bias)
        ours.bias_hh_l0.copy_(part.input_layer.bias)
    own = [part.input_layer.weight, part.hidden_layer.weight]
    return Pair("nn4n CTRNN", lambda: ours(x)[0], lambda: part(x), list(ours.parameters()), own)


def flashrnn(x: Tensor, size: Size, backend: str) -> Pair:
    from flashrnn.flashrnn.flashrnn import flashrnn as theirs

    T, B, inputs, H = size
    D = H // HEADS
    ours: Any = ll.Recurrent(cells.slstm, inputs, H, recurrent=f"heads:{HEADS}", batch_first=True)
    linear, values = nn.Linear(inputs, 4 * H), x.transpose(0, 1).contiguous()
    R: Any = nn.Parameter(ours.parametrizations.weight_hh_l0.original.detach().clone())  # (gate, head, to, from)
    bias: Any = nn.Parameter(torch.zeros(4, HEADS, D))
    with torch.no_grad():
        linear.weight.copy_(ours.weight_ih_l0)
        linear.bias.copy_(ours.bias_ih_l0 + ours.bias_hh_l0)

    def run() -> Tensor:
        Wx = linear(values).view(B, T, 4, HEADS, D)
        return theirs(Wx, R, bias, function="slstm", backend=backend, dtype="float32")[0][0].reshape(B, T, H)

    trained = [ours.weight_ih_l0, *(p for name, p in ours.named_parameters() if "weight_ih" not in name)]
    name = f"flashrnn sLSTM, {HEADS} heads" + (", its own backward" if backend == "vanilla_fwbw" else "")
    return Pair(name, lambda: ours(values)[0], run, trained, [linear.weight, R, bias], gradients=backend == "vanilla")


def run(pair: Pair, size: Size, seconds: float) -> None:
    d = torch.randn_like(pair.ours())

    def backward(call: Callable[[], Tensor], parameters: list[Tensor]) -> Callable[[], list[Tensor]]:
        def both() -> list[Tensor]:
            y = call()
            return [y, *torch.autograd.grad(y, parameters, d)]

        return both

    ours = backward(pair.ours, pair.our_parameters)
    theirs = backward(pair.theirs, pair.their_parameters)
    (y, mine, *_), (wanted, d_theirs, *_) = ours(), theirs()
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-4)
    if pair.gradients:
        mine, scale = mine[pair.rows], 1e-3 * float(d_theirs.abs().max())
        torch.testing.assert_close(mine, d_theirs[:, : mine.shape[1]], rtol=1e-3, atol=scale)
    (median, spread), (base, _) = map(middle, measure({"ours": ours, "theirs": theirs}, seconds).values())
    append(f"cells: {pair.name} {size}", median * 1e3, "ms", baseline=base * 1e3, spread=spread)


def main(seconds: float, part: str) -> None:
    torch.set_num_threads(1)
    for size in SIZES:
        for pair in pairs(size):
            if part in pair.name:
                run(pair, size, seconds)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 4.0, sys.argv[2] if len(sys.argv) > 2 else "")
