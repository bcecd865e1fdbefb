"""The command line. A file of commands is loaded when it is needed, and loads its own tools when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from longlag.cli._commands import Lazy

# name -> where it is: a function is one command, a typer.Typer a group of commands
COMMANDS = {
    "reproduce": "longlag.cli.lab:reproduce",
    "report": "longlag.cli.lab:report",
    "verify": "longlag.cli.lab:verify",
    "experiments": "longlag.cli.lab:experiments",
    "bench": "longlag.cli.bench:bench",
    "export": "longlag.cli.export:export",
    "flow": "longlag.cli.flow:app",
    "play": "longlag.cli.play:play",
    "tag": "longlag.cli.tag:app",
}


class Commands(Lazy):
    """The commands of longlag."""

    commands_at = COMMANDS


app = typer.Typer(cls=Commands, no_args_is_help=True, rich_markup_mode="rich")


def _version(asked: bool) -> None:
    if asked:
        from longlag import __version__

        typer.echo(f"longlag {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Recurrent networks as equations: experiments, analyses and tools."""
