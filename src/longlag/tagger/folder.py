"""A model folder: a description in JSON, tensors in safetensors; nothing is pickled, files are replaced whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from longlag import files

FORMAT, VERSION = "longlag.tagger", 1
DESCRIPTION, WEIGHTS, VECTORS, CHECKPOINT = (
    "tagger.json",
    "model.safetensors",
    "vectors.safetensors",
    "checkpoint.safetensors",
)


class FolderError(ValueError):
    """A folder that cannot be used; the message says why and what to do."""


def write_description(folder: Path, content: dict[str, Any]) -> None:
    """Write tagger.json."""
    text = json.dumps({"format": FORMAT, "version": VERSION, **content}, ensure_ascii=False, indent=0)
    files.replace(folder / DESCRIPTION, text.encode())


def read_description(folder: Path) -> dict[str, Any]:
    """Read tagger.json; refuse other formats and versions."""
    path = folder / DESCRIPTION
    if not path.is_file():
        raise FolderError(f"Tagger: {folder} must be a folder written by longlag tag train, it has no {DESCRIPTION}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = content["format"], content["version"]
    except (ValueError, TypeError, KeyError) as error:
        raise FolderError(f"Tagger: {path} is damaged or not a tagger's ({type(error).__name__}: {error})") from error
    if found != (FORMAT, VERSION):
        here = f"{FORMAT} version {VERSION}"
        raise FolderError(f"Tagger: {path} must be {here}, got {found[0]} version {found[1]}; train the model again")
    return content


def write_tensors(path: Path, tensors: dict[str, Tensor], **notes: Any) -> None:
    """Write tensors, and notes about them as JSON metadata. The same content gives the same bytes."""
    from safetensors.torch import save

    contents = {name: value.detach().contiguous() for name, value in tensors.items()}
    head = {"format": FORMAT, "version": VERSION, **notes}
    files.replace(path, save(contents, {"longlag": json.dumps(head, sort_keys=True)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_tensors` wrote."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FolderError(f"Tagger: {path.parent} must hold {path.name}, it does not: no epoch was finished")
    try:
        with safe_open(path, "pt") as file:
            head = json.loads((file.metadata() or {})["longlag"])
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118  (not a dict)
    except (SafetensorError, ValueError, KeyError) as error:
        raise FolderError(f"Tagger: {path} is truncated or not a tagger's ({type(error).__name__}: {error})") from error
    if (head.get("format"), head.get("version")) != (FORMAT, VERSION):
        raise FolderError(f"Tagger: {path} must be {FORMAT} version {VERSION}, got {head.get('version')}")
    return tensors, head


def claim(folder: Path) -> None:
    """Create the folder of a new model; a folder that holds a tagger or other files is refused."""
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"Tagger: {folder} must be a folder, got a file")
    if begun(folder):
        left = "finished: choose another folder, or remove this one" if finished(folder) else "unfinished: resume it"
        raise FolderError(f"Tagger: {folder} holds a tagger already, {left}")
    if folder.exists() and any(not _of_a_killed_start(path) for path in folder.iterdir()):
        raise FolderError(f"Tagger: {folder} must be a new or empty folder, it holds other files")
    folder.mkdir(parents=True, exist_ok=True)
    remove_half_written(folder)


def _of_a_killed_start(path: Path) -> bool:
    """Whether a training that was killed before it could be resumed has left this file."""
    return path.name in (VECTORS, CHECKPOINT) or _half_written(path)


def _half_written(path: Path) -> bool:
    """Whether a killed training was writing this file."""
    return any(files.is_temporary(path, name) for name in (DESCRIPTION, WEIGHTS, VECTORS, CHECKPOINT))


def remove_half_written(folder: Path) -> None:
    """Remove what killed trainings were writing; the files they would have replaced are complete."""
    for path in folder.iterdir():
        if _half_written(path):
            path.unlink()


def begun(folder: Path) -> bool:
    """Whether there is a training to resume: its description is written last."""
    return (folder / DESCRIPTION).exists()


def finished(folder: Path) -> bool:
    """Whether nothing is left to resume."""
    return begun(folder) and not (folder / CHECKPOINT).exists()


def fit(module: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Load tensors into a module they belong to."""
    wanted = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    given = {name: tuple(value.shape) for name, value in tensors.items()}
    if given != wanted:
        other = sorted({name for name in {*given, *wanted} if given.get(name) != wanted.get(name)})
        raise FolderError(f"Tagger: {path} does not fit {DESCRIPTION}: {', '.join(other)} differ")
    module.load_state_dict(tensors)


def fingerprint(*paths: Path) -> str:
    """SHA-256 of files, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
