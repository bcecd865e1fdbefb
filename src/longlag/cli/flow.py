"""`longlag flow`: pictures of gradients and memory, each with its numbers as CSV."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from torch import Tensor

    from longlag.flow._result import Result
    from longlag.layers._module import Layer

app = typer.Typer(
    no_args_is_help=True,
    help="See why gradients vanish, and where memory lives. Each command writes a picture and its numbers as CSV.",
)


class Kind(StrEnum):
    """Layers by name."""

    elman = "elman"
    rnn97 = "rnn97"
    leaky = "leaky"
    gru = "gru"
    lstm = "lstm"
    lstm97 = "lstm97"
    skip = "skip"
    jordan = "jordan"
    echo = "echo"
    local_net = "local-net"
    local_activation = "local-activation"


class Method(StrEnum):
    """How norms are computed."""

    exact = "exact"
    probe = "probe"


Hidden = Annotated[int, typer.Option(help="Units of the layer (memory cells for lstm97).")]
Length = Annotated[int, typer.Option(help="Steps of the sequences.")]
Inputs = Annotated[int, typer.Option(help="Size of the input, which is Gaussian noise.")]
Sequences = Annotated[int, typer.Option(help="Number of sequences; pictures show their median and range.")]
Seed = Annotated[int, typer.Option(help="Of weights and data.")]
LayerName = Annotated[Kind, typer.Option(help="Which layer.")]
Out = Annotated[Path, typer.Option(help="Picture to write: .png, .svg or .pdf. The numbers go beside it as .csv.")]


@app.command()
def error(
    layer: LayerName = Kind.elman,
    hidden: Hidden = 50,
    length: Length = 200,
    gain: Annotated[
        list[float] | None,
        typer.Option(help="Rescale the recurrent matrix to this spectral radius. Repeat it for several lines."),
    ] = None,
    method: Annotated[
        Method, typer.Option(help="exact: Jacobian products. probe: vector products, for large layers.")
    ] = Method.exact,
    inputs: Inputs = 3,
    sequences: Sequences = 4,
    seed: Seed = 0,
    out: Out = Path("flow_error.png"),
) -> None:
    """How an error shrinks or grows on its way back in time.

    Draws the norm of ∂state(t)/∂state(t−q) against the lag q, with a bound that holds for every input where theory
    gives one. Below 1 the gradient vanishes, above it explodes.
    """
    with told():
        from longlag import flow

        x = noise(length, sequences, inputs, seed)
        found = {}
        for g in gain or [None]:
            made = build(layer, inputs, hidden, seed)
            if g is not None:
                rescale(made, g)
            found["as initialised" if g is None else f"radius {g:g}"] = flow.error_flow(made, x, method=method.value)
        title = f"Error flow of {next(iter(found.values())).name}, {hidden} units"
        write(flow.compare(found, title) if gain and len(gain) > 1 else next(iter(found.values())), out)
        for name, one in found.items():
            typer.echo(f"{name}: {one.regime[0]}, {float(one.rate[-1].median()):.4g} per step")


@app.command()
def credit(
    layer: LayerName = Kind.elman,
    hidden: Hidden = 50,
    length: Length = 60,
    inputs: Inputs = 3,
    sequences: Sequences = 8,
    seed: Seed = 0,
    out: Out = Path("flow_credit.png"),
) -> None:
    """Which earlier steps the loss at each step is credited to.

    The loss is ½ ‖y(t)‖² at every step. The picture has one column per loss; going down a column is going back in
    time. Where the colour has faded, nothing can be learned.
    """
    with told():
        from longlag import flow

        made = build(layer, inputs, hidden, seed)
        found = flow.gradient_by_lag(made, noise(length, sequences, inputs, seed), lambda y: 0.5 * y.square().sum(-1))
        write(found, out)
        share = found.share()
        typer.echo(f"the last 10 steps receive {100 * float(share[:10].sum()):.1f} % of all credit")


@app.command()
def forgetting(
    hidden: Hidden = 8,
    length: Length = 200,
    time_constant: Annotated[float, typer.Option(help="Longest time constant of the units, in steps.")] = 20.0,
    epsilon: Annotated[float, typer.Option(help="Influence that counts as forgotten.")] = 1e-3,
    inputs: Inputs = 3,
    sequences: Sequences = 4,
    seed: Seed = 0,
    out: Out = Path("flow_forgetting.png"),
) -> None:
    """How fast a local-feedback network forgets, beside the proven bound.

    Left, the influence of an input on the output q steps later. Right, by how much the output changes when the
    network sees only the last Q inputs: a network that forgets is a feed-forward network on a window.
    """
    with told():
        import torch

        import longlag as ll
        from longlag import flow

        torch.manual_seed(seed)
        options = {"constrain": "forget", "time_constant": time_constant, "dtype": torch.float64}
        network = ll.LocalFeedbackNetwork(inputs, (0, hidden, hidden), (1, 0, 0), **options)
        found = flow.forgetting(network, noise(length, sequences, inputs, seed))
        write(found, out, epsilon=epsilon)
        typer.echo(
            f"gain {found.gain:.4f} a step; horizon {found.horizon(epsilon):.0f}, window {found.window(epsilon):.0f}"
        )


@app.command()
def drift(
    length: Annotated[int, typer.Option(help="Steps of the multiplication problem, at least 22.")] = 50,
    updates: Annotated[int, typer.Option(help="Updates of each network.")] = 150,
    bias: Annotated[
        list[float] | None, typer.Option(help="Initial bias of the input gates. Repeat it; 0, −3 and −6 by default.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Sequences per update.")] = 8,
    rate: Annotated[float, typer.Option(help="Learning rate.")] = 0.5,
    seed: Seed = 0,
    out: Out = Path("flow_drift.png"),
) -> None:
    """Internal state drift of LSTM-97 while it trains, with and without negative input-gate biases.

    Inputs of one sign push the internal states away from 0, where h′(s) vanishes and no error enters the cell. A
    negative bias keeps the input gates nearly closed until there is something to store.
    """
    with told():
        import torch

        import longlag as ll
        from longlag import flow, tasks

        torch.manual_seed(seed)
        network = ll.LSTM97(2, blocks=2, block_size=2, output_size=1)
        biases = tuple(bias) if bias else (0.0, -3.0, -6.0)
        options = {"updates": updates, "batch": batch, "learning_rate": rate, "seed": seed}
        found = flow.drift(network, tasks.Multiplication(length), biases=biases, **options)
        write(found, out)
        for k, b in enumerate(biases):
            typer.echo(
                f"bias {b:g}: mean |s| {float(found.state[k, -1]):.3g}, h'(s)/h'(0) {float(found.slope[k, -1]):.3g}"
            )


@app.command()
def memory(
    hidden: Hidden = 8,
    length: Annotated[int, typer.Option(help="Steps of the adding problem, at least 22.")] = 40,
    updates: Annotated[int, typer.Option(help="Updates on the adding problem before looking; 0: untrained.")] = 1500,
    seed: Seed = 0,
    out: Out = Path("flow_memory.png"),
) -> None:
    """Which past inputs the memory cells of an LSTM are made of.

    Trains an LSTM on the adding problem (remember two marked numbers), then takes its memory at the end of a
    sequence apart: c(t) = Σ w_k g_k, where w_k is what the gates kept of step k. Triangles point at the marked steps.
    """
    with told():
        from longlag import flow

        lstm, x, marked = adding(hidden, length, updates, seed)
        found = flow.memory_weights(lstm, x)
        write(found, out, marks=marked)
        parts = found.contributions[:, 0].abs()  # (T, cells)
        share, cell = (parts[marked].sum(0) / parts.sum(0)).max(0)
        typer.echo(
            f"{100 * float(share):.0f} % of cell {int(cell)} is made of the marked steps {marked[0]}, {marked[1]}"
        )


@app.command()
def compare(
    hidden: Hidden = 32,
    length: Length = 100,
    inputs: Inputs = 3,
    sequences: Sequences = 4,
    seed: Seed = 0,
    out: Out = Path("flow_compare.png"),
) -> None:
    """Error flow of Elman, leaky, LSTM, LSTM-97 and local-feedback layers on one axis.

    All as they are initialised, on the same noise. LSTM-97 appears twice: with the cuts of its learning rule the
    error of the internal states is carried on unchanged, exactly 1; without them it is not.
    """
    with told():
        from longlag import flow

        x = noise(length, sequences, inputs, seed)
        lstm97 = build(Kind.lstm97, inputs, hidden, seed)
        names = {
            "Elman": Kind.elman,
            "leaky, α = 10": Kind.leaky,
            "LSTM, forget gate": Kind.lstm,
            "local feedback": Kind.local_net,
        }
        flows: dict[str, flow.ErrorFlow | flow.Carousel] = {
            name: flow.error_flow(build(kind, inputs, hidden, seed), x) for name, kind in names.items()
        }
        flows["LSTM-97, nothing cut"] = flow.error_flow(lstm97, x)
        flows["LSTM-97, as it learns"] = flow.carousel(lstm97, x)
        found = flow.compare(flows, f"Error flow of {hidden} units, as initialised")
        write(found, out)
        for name, one in found.flows.items():
            typer.echo(f"{name}: {one.regime[0]}, {float(one.rate[-1].median()):.4g} per step")


# ------------------------------------------------------------------------------------------------------- their parts
@contextmanager
def told() -> Iterator[None]:
    """Bad input is one line, not a traceback."""
    try:
        yield
    except (ValueError, TypeError) as error:
        typer.echo(f"longlag: {error}", err=True)
        raise typer.Exit(2) from error


def write(result: Result, out: Path, **options: object) -> None:
    """The picture at ``out``, the numbers beside it."""
    typer.echo(f"{result.save(out, **options)}, {result.to_csv(out.with_suffix('.csv'))}")


def noise(length: int, sequences: int, inputs: int, seed: int) -> Tensor:
    """Gaussian noise (T, B, I)."""
    import torch

    for name, value in {"length": length, "sequences": sequences, "inputs": inputs}.items():
        if value < 1:
            raise ValueError(f"flow: {name} must be a positive int, got {value}")
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(length, sequences, inputs, generator=generator, dtype=torch.float64)


def build(kind: Kind, inputs: int, hidden: int, seed: int) -> Layer:
    """A float64 layer by name, as it is initialised."""
    import torch

    import longlag as ll

    torch.manual_seed(seed)
    dtype = torch.float64
    makers = {
        Kind.elman: lambda: ll.Elman(inputs, hidden, dtype=dtype),
        Kind.rnn97: lambda: ll.Recurrent(ll.cells.rnn97, inputs, hidden, dtype=dtype),
        Kind.leaky: lambda: ll.Leaky(inputs, hidden, alpha=10.0, dtype=dtype),
        Kind.gru: lambda: ll.GRU(inputs, hidden, dtype=dtype),
        Kind.lstm: lambda: ll.LSTM(inputs, hidden, forget_bias=1.0, dtype=dtype),
        Kind.lstm97: lambda: ll.LSTM97(inputs, hidden, dtype=dtype),
        Kind.skip: lambda: ll.Skip(inputs, hidden, delays=(10,), dtype=dtype),
        Kind.jordan: lambda: ll.Jordan(inputs, hidden, hidden, dtype=dtype),
        Kind.echo: lambda: ll.EchoState(inputs, hidden, 1, density=0.5, dtype=dtype),
        Kind.local_net: lambda: ll.LocalFeedback(inputs, hidden, feedback="net", dtype=dtype),
        Kind.local_activation: lambda: ll.LocalFeedback(inputs, hidden, feedback="activation", dtype=dtype),
    }
    return makers[kind]()


def rescale(layer: Layer, radius: float) -> None:
    """Give the recurrent matrix this spectral radius."""
    import torch

    U = dict(layer.named_parameters()).get("weight_hh_l0")
    if U is None or U.shape[0] != U.shape[1]:
        raise ValueError(
            f"flow error: --gain needs a layer with one square recurrent matrix, got {type(layer).__name__}"
        )
    with torch.no_grad():
        U.mul_(radius / torch.linalg.eigvals(U).abs().max())


def adding(hidden: int, length: int, updates: int, seed: int) -> tuple[Layer, Tensor, list[int]]:
    """An LSTM trained on the adding problem, one sequence (T, 1, 2) of it, and its two marked steps."""
    import numpy as np
    import torch

    import longlag as ll
    from longlag import tasks

    torch.manual_seed(seed)
    rng, task = np.random.default_rng(seed), tasks.Adding(length)
    lstm, readout = ll.LSTM(2, hidden, forget_bias=4.0), torch.nn.Linear(hidden, 1)
    with torch.no_grad():
        lstm.get_parameter("bias_ih_l0")[:hidden] = -3.0  # input gates start nearly closed, as in 1997
    parameters = [*lstm.parameters(), *readout.parameters()]
    optimizer = torch.optim.Adam(parameters, 0.01)
    for _ in range(updates):
        x, targets, lengths = task.sample(32, rng).padded()
        _, (h, _) = lstm(x, lengths=lengths)
        optimizer.zero_grad()
        (readout(h[0]) - targets).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    while True:  # nine sequences in ten have two marks
        x, _, _ = task.sample(1, rng).padded()
        marked = (x[:, 0, 1] == 1).nonzero().flatten().tolist()
        if len(marked) == 2:
            return lstm, x, marked
