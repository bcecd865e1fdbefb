"""How commands end when the input is bad."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def one_line_errors(when_stopped: str = "stopped") -> Iterator[None]:
    """Turn errors into one line on standard error and an exit status, without a traceback.

    Bad input ends with status 2. Control-C ends with status 130, and ``when_stopped`` says how to continue. A closed
    pipe (``| head``) is no error and ends with status 0.
    """
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except (ValueError, TypeError, OSError) as error:
        typer.echo(f"longlag: {error}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        typer.echo(f"longlag: {when_stopped}", err=True)
        raise typer.Exit(130) from None
