"""The identity of settings: canonical JSON that survives renamed classes and new options.

An object is written as its declared `kind` and the fields that differ from their defaults. A class may be renamed and
may get new fields with defaults without orphaning a record. A changed default is a change of code: records carry the
fingerprint of the code that made them (see `fingerprint`), so such records are never mixed.
"""

import json
import math
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, cast

from longlag import tasks

# Names of the tasks in stores. A renamed class keeps its name here.
TASKS = {
    tasks.Adding: "adding",
    tasks.Copy: "copy",
    tasks.DelayedXOR: "delayed xor",
    tasks.Distractors: "distractors",
    tasks.EmbeddedReber: "embedded reber",
    tasks.LongLag: "long lag",
    tasks.Multiplication: "multiplication",
    tasks.NoiseFree: "noise free",
    tasks.Parity: "parity",
    tasks.TemporalOrder: "temporal order",
    tasks.TwoSequence: "two sequence",
}


def kind_of(value: Any) -> str:
    """The declared kind of an object; a class of the user's own that declares none is known by its full name."""
    cls = type(value)
    return TASKS.get(cls) or getattr(cls, "kind", f"{cls.__module__}.{cls.__qualname__}")


def described(value: Any) -> Any:
    """A value as plain data: dataclasses by kind and changed fields, whole floats as ints, tuples as lists."""
    if is_dataclass(value):
        changed = {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) != default(f)}
        return {"kind": kind_of(value), **described(changed)}
    if isinstance(value, dict):
        return {key: described(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [described(each) for each in value]
    if value is None or isinstance(value, bool | str | int):
        return value
    number = float(cast(float, value))  # floats, and NumPy's numbers
    return int(number) if number.is_integer() else number if math.isfinite(number) else repr(number)


def default(field: Any) -> Any:
    """The default of a dataclass field; a value that equals nothing if it has none."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default if field.default is not MISSING else float("nan")


def canonical(value: Any) -> str:
    """Canonical JSON: sorted keys, no spaces.

    >>> canonical({"task": tasks.Adding(T=100), "cap": 7})
    '{"cap":7,"task":{"T":100,"kind":"adding"}}'
    """
    return json.dumps(described(value), sort_keys=True, separators=(",", ":"))
