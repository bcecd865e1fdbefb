"""``longlag export``: a model for programs without Python."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longlag.cli._errors import one_line_errors

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = (".onnx", ".c", ".pt2")


def export(
    model: Annotated[str, typer.Argument(help="module:object, a model in a Python file of yours.", show_default=False)],
    target: Annotated[Path, typer.Argument(help="The file to write: .onnx, .c or .pt2.", show_default=False)],
    weights: Annotated[
        Path | None,
        typer.Option(help="A safetensors file: of Online.save for a learner, else of the layer's state_dict."),
    ] = None,
    step: Annotated[bool, typer.Option("--step", help="ONNX, pt2: one step instead of whole sequences.")] = False,
    learn: Annotated[
        bool, typer.Option("--learn", help="C: the learning rule too, so that a device learns on.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a model as ONNX, C or a torch program, after a check against the reference engine.

    MODEL is a layer, a CRF (its decoding) or a learn.Online (its layer and read-out), or a function without arguments
    that returns one. The module is searched in the current folder first.

        longlag export mine:net net.onnx

        longlag export mine:learner net.c --weights learner.safetensors --learn
    """
    with one_line_errors():
        from longlag import export as exports

        writers: dict[str, Callable[..., float]] = {
            ".onnx": lambda *given, **options: exports.to_onnx(*given, step=step, **options),
            ".pt2": lambda *given, **options: exports.to_torch(*given, step=step, **options),
            ".c": lambda *given, **options: exports.to_c(*given, learn=learn, **options),
        }
        if target.suffix not in writers:
            raise ValueError(f"export: {target} must end in {', '.join(KINDS)}")
        if learn and target.suffix != ".c":
            raise ValueError(f"export: --learn is for C, got {target}; ONNX models and torch programs do not learn")
        if step and target.suffix == ".c":
            raise ValueError(f"export: --step is for ONNX and pt2, got {target}; C code always works step by step")
        largest = writers[target.suffix](_loaded(model, weights), target, force=force)
        typer.echo(
            f"{target}: {target.stat().st_size} bytes, largest difference from the reference engine {largest:.1e}"
        )


def _loaded(name: str, weights: Path | None) -> Any:
    """The model ``module:object``, with weights from a file."""
    import importlib
    import sys

    module, _, attribute = name.partition(":")
    if not attribute:
        hint = (
            "; a file of weights does not hold the network: give its code as module:object, and the file by --weights"
        )
        raise ValueError(f"export: MODEL must be module:object, got {name}{hint if Path(name).exists() else ''}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"export: MODEL {name} cannot be imported: {error}") from error
    finally:
        sys.path.pop(0)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ValueError(f"export: MODEL {name} does not exist: no {part} in {module}")
        found = getattr(found, part)
    if callable(found) and not hasattr(found, "state_dict") and not hasattr(found, "rule"):
        found = found()
    if weights is not None:
        _load(found, weights)
    return found


def _load(model: Any, weights: Path) -> None:
    if hasattr(model, "load"):
        model.load(weights)
        return
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        model.load_state_dict(load_file(weights))
    except SafetensorError as error:
        raise ValueError(f"export: {weights} must be a safetensors file ({error})") from error
