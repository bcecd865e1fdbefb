"""`longlag play`: the playground in the browser."""

from __future__ import annotations

from typing import Annotated

import typer

from longlag.cli._errors import one_line_errors


def play(
    port: Annotated[int, typer.Option(help="Where to serve; if the port is in use, the next one. 0: any.")] = 8971,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Try cells, gradients and learning in the browser.

    Serves the playground on this machine only (loopback) until Control-C. The page is one file that also works
    without this command; cells typed into the page need it, because the library derives their code.
    """
    with one_line_errors("the playground is closed"):
        import webbrowser

        from longlag.play import Playground

        with Playground(port) as server:
            typer.echo(f"the playground is at {server.address} (Control-C ends it)")
            if browser and not webbrowser.open(server.address):
                typer.echo(f"no browser found: open {server.address} in one")
            server.serve_forever()
