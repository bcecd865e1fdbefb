"""The command line. A file of commands is loaded when it is needed, and loads its own tools when it runs."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

# name -> where it lives: a function is one command, a typer.Typer a group of commands
COMMANDS = {
    "reproduce": "longlag.cli.lab:reproduce",
    "report": "longlag.cli.lab:report",
    "experiments": "longlag.cli.lab:experiments",
    "bench": "longlag.cli.bench:bench",
    "flow": "longlag.cli.flow:app",
    "tag": "longlag.cli.tag:app",
}


class Lazy(TyperGroup):
    """A group that knows its commands by name only."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        found = getattr(importlib.import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            found, command = typer.Typer(), found
            found.command(cmd_name)(command)
        command = typer.main.get_command(found)
        command.name = cmd_name
        return command


app = typer.Typer(cls=Lazy, no_args_is_help=True, add_completion=False, rich_markup_mode="rich")


def _version(asked: bool) -> None:
    if asked:
        from longlag import __version__

        typer.echo(f"longlag {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it and stop.")
    ] = False,
) -> None:
    """Recurrent networks as equations: experiments, analyses and tools."""
