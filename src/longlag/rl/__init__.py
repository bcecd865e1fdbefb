"""Recurrent reinforcement learning: layers and cells in sb3-contrib and TorchRL.

The other package is imported when a name is first used; ``import longlag`` needs neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longlag.rl.policies import RecurrentCnnPolicy as RecurrentCnnPolicy
    from longlag.rl.policies import RecurrentMultiInputPolicy as RecurrentMultiInputPolicy
    from longlag.rl.policies import RecurrentPolicy as RecurrentPolicy
    from longlag.rl.tensordicts import RecurrentModule as RecurrentModule

# name -> (module, what it needs, the extra that installs it)
_SB3 = ("policies", "sb3_contrib", "rl")
_LAZY = {
    "RecurrentPolicy": _SB3,
    "RecurrentCnnPolicy": _SB3,
    "RecurrentMultiInputPolicy": _SB3,
    "RecurrentModule": ("tensordicts", "torchrl", "torchrl"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, needed, extra = _LAZY[name]
    try:
        importlib.import_module(needed)
    except ModuleNotFoundError as error:
        raise ImportError(f'{__name__}.{name} needs {error.name}: pip install "longlag[{extra}]"') from error
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_LAZY]
