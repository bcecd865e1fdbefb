"""`longlag flow`: pictures of gradients and memory, each with its numbers as CSV."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longlag.cli._errors import one_line_errors
from longlag.cli._specimens import Kind, adding, build, check, noise, rescale, start_random_numbers

if TYPE_CHECKING:
    from longlag.flow import Result

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="See why gradients vanish, and where memory lives. Each command writes a picture and its numbers as CSV.",
)


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
    with one_line_errors():
        from longlag import flow

        for g in gain or ():
            check("flow error: --gain", "a positive number", g, 0 < g < math.inf)
        x = noise(length, sequences, inputs, seed)
        found = {}
        for g in gain or [None]:
            made = build(layer, inputs, hidden, seed)
            if g is not None:
                rescale(made, g)
            found["as initialised" if g is None else f"radius {g:g}"] = flow.error_flow(made, x, method=method.value)
        title = f"Error flow of {next(iter(found.values())).name}, {hidden} units"
        write(flow.compare(found, title=title) if gain and len(gain) > 1 else next(iter(found.values())), out)
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
    """Which earlier steps get credit for the loss at each step.

    The loss is ½ ‖y(t)‖² at every step. The picture has one column per loss; going down a column is going back in
    time. Where the colour has faded, nothing can be learned.
    """
    with one_line_errors():
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
    """How fast a local-feedback network forgets, with the proven bound.

    Left, the influence of an input on the output q steps later. Right, by how much the output changes when the
    network sees only the last Q inputs: a network that forgets is a feed-forward network on a window.
    """
    with one_line_errors():
        import torch

        import longlag as ll
        from longlag import flow

        start_random_numbers(seed)
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
    with one_line_errors():
        import longlag as ll
        from longlag import flow, tasks

        start_random_numbers(seed)
        network = ll.LSTM97(2, blocks=2, block_size=2, output_size=1)
        biases = tuple(bias) if bias else (0.0, -3.0, -6.0)
        check("flow drift: --rate", "a positive number", rate, 0 < rate < math.inf)
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
    updates: Annotated[
        int, typer.Option(help="Updates on the adding problem before the analysis; 0: untrained.")
    ] = 1500,
    seed: Seed = 0,
    out: Out = Path("flow_memory.png"),
) -> None:
    """Which past inputs the memory cells of an LSTM are made of.

    Trains an LSTM on the adding problem (remember two marked numbers), then takes its memory at the end of a
    sequence apart: c(t) = Σ w_k g_k, where w_k is what the gates kept of step k. Triangles point at the marked steps.
    """
    with one_line_errors():
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

    All layers are as initialised and read the same noise. LSTM-97 appears twice: with the cuts of its learning rule the
    error of the internal states stays exactly 1; without the cuts the error changes.
    """
    with one_line_errors():
        from longlag import flow

        x = noise(length, sequences, inputs, seed)
        lstm97 = build(Kind.lstm97, inputs, hidden, seed)
        names = {
            "Elman": Kind.elman,
            "leaky, α = 10": Kind.leaky,
            "LSTM, forget gate": Kind.lstm,
            "local feedback": Kind.local_net,
        }
        layers = {name: build(kind, inputs, hidden, seed) for name, kind in names.items()}
        layers |= {"LSTM-97, nothing cut": lstm97}
        flows = {**layers, "LSTM-97, as it learns": flow.carousel(lstm97, x)}
        found = flow.compare(flows, x, title=f"Error flow of {hidden} units, as initialised")
        write(found, out)
        for name, one in found.flows.items():
            typer.echo(f"{name}: {one.regime[0]}, {float(one.rate[-1].median()):.4g} per step")


def write(result: Result, out: Path, **options: object) -> None:
    """Write the picture to ``out`` and its numbers to a CSV file of the same name."""
    typer.echo(f"{result.save(out, **options)}, {result.to_csv(out.with_suffix('.csv'))}")
