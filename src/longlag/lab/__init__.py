"""The laboratory: the experiments of 1997 as data, trials as pure functions, and a store that forgets nothing.

>>> from longlag import lab
>>> [experiment.name for experiment in lab.select("quick", ["4/fit", "6a"])]
['4 T=100', '6a']
"""

from typing import TYPE_CHECKING, Any

from longlag.lab import hs97 as hs97
from longlag.lab.experiment import Experiment as Experiment
from longlag.lab.profiles import select as select

if TYPE_CHECKING:
    from longlag.lab.run import reproduce as reproduce
    from longlag.lab.searching import search as search
    from longlag.lab.spaces import Range as Range
    from longlag.lab.store import Store as Store
    from longlag.lab.sweeps import sweep as sweep
    from longlag.lab.trials import trial as trial

LATER = {  # these load Numba
    "Range": "spaces",
    "reproduce": "run",
    "search": "searching",
    "Store": "store",
    "sweep": "sweeps",
    "trial": "trials",
}


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"longlag.lab.{LATER[name]}"), name)
