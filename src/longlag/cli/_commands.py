"""Commands and groups as `longlag` shows them: loaded by name, help filled to the terminal's width."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


def without_types_of_flags(params: list[Any]) -> list[Any]:
    """A flag takes no value, so its help names no type; typer would print <bool>."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


def filled(text: str | None) -> str | None:
    """A help text whose paragraphs are one line each; indented ones, the examples, stay as they are.

    >>> filled("One\\ntwo.\\n\\n    longlag a\\n    longlag b")
    'One two.\\n\\n    longlag a\\n    longlag b'
    """
    if text is None:
        return None
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(p if p.startswith(" ") else p.replace("\n", " ") for p in paragraphs)


class Command(TyperCommand):
    """One command."""

    def __init__(self, *args: Any, help: str | None = None, **options: Any) -> None:
        super().__init__(*args, help=filled(help), **options)

    def get_params(self, ctx: Any) -> list[Any]:
        return without_types_of_flags(super().get_params(ctx))


class Group(TyperGroup):
    """Commands under one name."""

    def get_params(self, ctx: Any) -> list[Any]:
        return without_types_of_flags(super().get_params(ctx))


class Lazy(Group):
    """The group of all commands, each imported when it is needed.

    `commands_at`: name -> module:attribute; a function is one command, a typer.Typer a group of commands.
    """

    commands_at: dict[str, str]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands_at)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands_at:
            return None
        module, _, attribute = self.commands_at[cmd_name].partition(":")
        found = getattr(importlib.import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(add_completion=False)
            found.command(cmd_name)(function)
        found.info.cls = Group
        for command in found.registered_commands:
            command.cls = Command
        made = typer.main.get_command(found)
        made.name = cmd_name
        return made
