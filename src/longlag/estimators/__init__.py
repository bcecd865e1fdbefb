"""Recurrent networks with the methods of scikit-learn (``fit``, ``predict``) and of river (``learn_one``).

The classes are loaded on first access: those of scikit-learn need ``pip install "longlag[sklearn]"``, those of river
``pip install "longlag[river]"``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longlag.estimators.echo import EchoStateRegressor as EchoStateRegressor
    from longlag.estimators.recurrent import RecurrentClassifier as RecurrentClassifier
    from longlag.estimators.recurrent import RecurrentRegressor as RecurrentRegressor
    from longlag.estimators.stream import StreamClassifier as StreamClassifier
    from longlag.estimators.stream import StreamRegressor as StreamRegressor

_HOME = {  # class -> its module, and the extra that the module needs
    "EchoStateRegressor": ("echo", "sklearn"),
    "RecurrentClassifier": ("recurrent", "sklearn"),
    "RecurrentRegressor": ("recurrent", "sklearn"),
    "StreamClassifier": ("stream", "river"),
    "StreamRegressor": ("stream", "river"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra = _HOME[name]
    try:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != extra:
            raise
        raise ModuleNotFoundError(f'estimators: {name} needs {extra}: pip install "longlag[{extra}]"') from error


def __dir__() -> list[str]:
    return sorted(_HOME)
