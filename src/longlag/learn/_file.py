"""A learner in one safetensors file: tensors as tensors, everything else as JSON; nothing is pickled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longlag import files

FORMAT, VERSION = "longlag.learn.Online", 1


def write(path: Path, content: dict[str, Any]) -> None:
    """Write nested dicts, lists and tuples of tensors and plain values; the file is replaced atomically."""
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    text = json.dumps({"format": FORMAT, "version": VERSION, "content": _encode(content, tensors, "content")})
    files.replace(path, save(tensors, {"longlag": text}))


def read(path: Path, device: torch.device) -> dict[str, Any]:
    """The content of a file made by `write`; a ValueError for any other file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt", device=str(device)) as file:
            text = (file.metadata() or {}).get("longlag")
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118  (not a dict)
    except SafetensorError as error:
        raise ValueError(f"Online: {path.name} is truncated or not a safetensors file ({error})") from error
    try:
        header = json.loads(text or "null")
        found = header["format"], header["version"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"Online: {path.name} was not written by Online.save") from error
    if found[0] != FORMAT or found[1] != VERSION:
        raise ValueError(f"Online: {path.name} is {found[0]} version {found[1]}, this library reads {FORMAT} {VERSION}")
    try:
        return _decode(header["content"], tensors)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"Online: {path.name} is damaged: its description does not fit its tensors") from error


def _encode(value: Any, tensors: dict[str, Tensor], key: str) -> Any:
    """JSON for the value; tensors go into ``tensors``, and the JSON names their keys."""
    if isinstance(value, Tensor):
        tensors[key] = value.detach().clone().contiguous()
        return {"tensor": key}
    if isinstance(value, dict):
        items = enumerate(value.items())
        return {"dict": [[_encode(k, tensors, key), _encode(v, tensors, f"{key}.{i}")] for i, (k, v) in items]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encode(v, tensors, f"{key}.{i}") for i, v in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"Online: cannot save {value!r}: {type(value).__name__} is neither a tensor nor plain data")


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {_decode(k, tensors): _decode(v, tensors) for k, v in content}
    pieces = [_decode(v, tensors) for v in content]
    return pieces if kind == "list" else tuple(pieces)
