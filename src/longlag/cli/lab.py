"""`longlag reproduce`, `longlag report`, `longlag experiments`: the laboratory from the command line."""

import sys
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from longlag.lab.experiment import Experiment
    from longlag.lab.run import Announce
    from longlag.report.verdicts import Row

OUT = Path("runs/hs97")
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--experiment",
        "-e",
        help="Number (4), name ('4 T=100'), one of these with a reading (4/fit), or topic (parity); may be repeated.",
    ),
]
Profile = Annotated[
    str,
    typer.Option(
        help="quick: the shortest row of each experiment, a few trials. paper: every row of Tables 1-9. "
        "beyond: claims without a table. options: what the text leaves open. distributions: 1,000 trials of four rows. "
        "modern: cells of today. all: everything."
    ),
]
Out = Annotated[Path, typer.Option(help="Folder of results and report.")]
SharedStore = Annotated[
    str | None,
    typer.Option("--store", help="Results on a PostgreSQL server, postgresql://user@host/database, not in --out."),
]
Cells = Annotated[
    list[str] | None,
    typer.Option(
        "--cell",
        help="Put a cell through the same tasks: a name (lstm, gru, elman, …) or module:cell of your own; repeatable.",
    ),
]
FirstSeed = Annotated[int, typer.Option(help="First seed. Seeds below 4000 have been looked at.")]
Rule = Annotated[str, typer.Option(help="How --cell learns: 1997, or bptt (whole gradient, batches, Adam).")]


def reproduce(
    experiment: Names = None,
    cell: Cells = None,
    rule: Rule = "1997",
    profile: Profile = "quick",
    trials: Annotated[int | None, typer.Option(help="Trials per experiment, instead of the profile's.")] = None,
    seed: FirstSeed = 4000,
    jobs: Annotated[int | None, typer.Option(help="Processes; all cores by default.")] = None,
    backend: Annotated[str, typer.Option(help="local, dask or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Address of a running Dask or Ray cluster.")] = None,
    out: Out = OUT,
    store: SharedStore = None,
) -> None:
    """Run the experiments of "Long Short-Term Memory" (1997) and compare with the paper's figures.

    [bold]longlag reproduce[/] takes two or three minutes: every experiment at its shortest length, a few trials each.
    [bold]longlag reproduce -e 4 -e 6a --trials 30[/] runs some experiments; [bold]longlag experiments[/] lists them.
    [bold]longlag reproduce --profile paper[/] runs every row of the tables: about two hours on two cores.
    [bold]longlag reproduce --profile beyond[/] tests what the paper says without a table, such as its limits.

    Where the paper's text does not give its figures, there are two readings: "text" and "fit", which comes nearest.

    [bold]longlag reproduce --store postgresql://…[/] on several machines shares the trials among them.

    [bold]longlag reproduce -e 4 --cell lstm --cell mine:cell[/] puts other cells through the same tasks.

    Finished trials are kept in the folder --out. Run the same command again to go on after an interruption.
    """
    from longlag import report as pages
    from longlag.lab.run import described
    from longlag.lab.run import reproduce as run

    with errors_as_sentences():
        chosen = select(profile, experiment, cell, rule)
        with progress() as announce:
            outcome = run(
                chosen, store or out, trials=trials, seed=seed, jobs=jobs, backend=backend, address=address,
                announce=announce, say=partial(typer.echo, err=True),
                command=described("longlag", sys.argv[1:]),
            )  # fmt: skip
        out.mkdir(parents=True, exist_ok=True)
        written = pages.write(store or out, chosen, seed, into=out)
    for line in summary(pages.rows(store or out, chosen, seed)):
        typer.echo(line)
    typer.echo(f"\n{outcome.computed} trials computed, {outcome.known} known already, {outcome.seconds:.0f} s.")
    typer.echo(f"Report: {written[0]}")


def report(
    experiment: Names = None,
    cell: Cells = None,
    rule: Rule = "1997",
    profile: Profile = "all",
    seed: FirstSeed = 4000,
    out: Out = OUT,
    store: SharedStore = None,
    open: Annotated[bool, typer.Option("--open", help="Show it in a browser.")] = False,
) -> None:
    """Write report.html, .md, .csv and .json from the results in a folder; runs nothing.

    A folder with results.sqlite.xz will do: [bold]longlag report --out docs/reproduction[/].
    """
    from longlag import report as pages

    with errors_as_sentences(), nullcontext(store) if store else pages.results_in(out) as place:
        written = pages.write(place, select(profile, experiment, cell, rule), seed, into=out)
    for path in written:
        typer.echo(path)
    if open:
        webbrowser.open(written[0].resolve().as_uri())


def verify(
    experiment: Names = None,
    profile: Profile = "all",
    trials: Annotated[int, typer.Option(help="How many stored trials are run again.")] = 20,
    seed: Annotated[int, typer.Option(help="Which sample.")] = 0,
    out: Out = OUT,
) -> None:
    """Run a sample of stored trials again: does today's code give the records of the code that made them?

    Ends with status 1 if a record differs.
    """
    from longlag import report as pages
    from longlag.lab.verify import verify as check

    with errors_as_sentences():
        chosen = select(profile, experiment)
        with pages.results_in(out) as folder:
            checks = check(folder, chosen, trials, seed, lambda each: typer.echo(each.sentence))
    same = sum(each.same for each in checks)
    typer.echo(f"{same} of {len(checks)} records are the same.")
    raise typer.Exit(same < len(checks))


def experiments(profile: Profile = "all") -> None:
    """List the experiments with the paper's figures or claims."""
    with errors_as_sentences():
        chosen = select(profile, None)
    width = max(len(e.name) for e in chosen) + 2
    typer.echo(
        f"{'name':<{width}}{'reading':<9}{'table':<7}{'weights':<9}{'trials':<8}{'cap':>10}   paper: success, after"
    )
    for e in chosen:
        line = f"{e.name:<{width}}{e.reading:<9}{e.table or '-':<7}{e.learner.weight_count:<9}{e.trials:<8}{e.cap:>10,}"
        typer.echo(f"{line}   {e.claim.where + ': ' + e.claim.expects if e.claim else figures(e)}")


def figures(experiment: "Experiment") -> str:
    """The paper's success rate and means."""
    after = ", ".join("none" if f.after is None else f"{f.after:,}" for f in experiment.paper)
    return f"{'some' if experiment.success is None else f'{experiment.success:g} %'}, {after}"


def select(
    profile: str, names: Sequence[str] | None, cells: Sequence[str] | None = None, rule: str = "1997"
) -> "tuple[Experiment, ...]":
    """The experiments asked for, and after them the rows of other cells."""
    from longlag.lab import profiles

    chosen = profiles.select(profile, names or ())
    if not cells:
        return chosen
    from longlag.lab.cell_rows import with_cells

    sys.path[:0] = [""] * ("" not in sys.path)  # modules of the present folder, as `python -m` finds them
    return with_cells(chosen, cells, rule)


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Mistakes and interruptions in one sentence, without a traceback."""
    from longlag.lab.store import StoreError

    try:
        yield
    except KeyboardInterrupt:
        typer.echo("\nStopped. Finished trials are kept; run the same command again to go on.", err=True)
        raise typer.Exit(130) from None
    except (ValueError, StoreError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


@contextmanager
def progress() -> "Iterator[Announce]":
    """One line per experiment under way: trials, successes, time left; done ones stay above. Quiet if no terminal."""
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    lines: dict[tuple[str, str], tuple[str, ...]] = {}

    def picture(left: str) -> Table:
        table = Table("experiment", "reading", "trials", "successes", caption=left, box=None)
        for line in lines.values():
            table.add_row(*line)
        return table

    with Live(picture("compiling"), console=Console(stderr=True, highlight=False), refresh_per_second=4) as live:

        def announce(p) -> None:
            key = p.experiment.name, p.experiment.reading
            lines[key] = (*key, f"{p.done}/{p.wanted}", f"{p.successes}")
            if p.done == p.wanted:
                live.console.print("  ".join(lines.pop(key)[:3]), f"trials, {p.successes} successful")
            live.update(picture(f"about {p.left / 60:.1f} minutes left"))

        yield announce


def summary(rows: "Sequence[Row]") -> Iterator[str]:
    """The rows that have trials, as a table of text."""
    run = [row for row in rows if row.trials]
    width = max([24, *(len(f"{row.name} {row.goal}") + 2 for row in run)])
    yield f"{'experiment':<{width}}{'reading':<9}{'success':<9}{'mean':>11}{'paper':>11}   verdict"
    for row in run:
        mean = "–" if row.mean is None else f"{row.mean:,.0f}"
        name = f"{row.name} {row.goal}".strip()
        rate = f"{row.successes}/{row.trials}"
        yield f"{name:<{width}}{row.reading:<9}{rate:<9}{mean:>11}{row.paper_after:>11}   {row.verdict}"
