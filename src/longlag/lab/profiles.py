"""Which experiments a run covers: every row of the paper, one short row of each kind, the claims beyond the tables."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from longlag.lab.beyond import claims
from longlag.lab.experiment import Experiment, Reading
from longlag.lab.hs97 import (
    experiment_1,
    experiment_2a,
    experiment_2b,
    experiment_2c,
    experiment_3,
    experiment_4,
    experiment_5,
    experiment_6,
    plain_1,
    plain_2a,
)
from longlag.lab.options import options
from longlag.lab.paper import table

FIRST_SEED = 4000  # of reported trials; all seeds below have been looked at, those below 100 to choose settings
EARLIER = 1000  # trials from here on were reported before; they stand where a row has too few newer ones
MANY = 1000  # trials of the experiments whose distributions are shown
READINGS: tuple[Reading, ...] = ("text", "fit")
ONE = ((4, 1, 0.1), (3, 2, 0.1), (3, 2, 0.2), (4, 1, 0.5), (3, 2, 0.5))  # Table 1: blocks, their size, learning rate
THREE: tuple[tuple[int, Literal["a", "b", "c"]], ...] = ((4, "a"), (5, "b"), (6, "c"))  # table, variant


def paper() -> tuple[Experiment, ...]:
    """Every row of Tables 1 to 9 that longlag has a learner for, with the paper's number of trials or more."""
    found = [plain_1("RTRL", 3), plain_1("RTRL", 12), plain_1("ELM", 15)]
    found += [plain_2a("RTRL", p, lr) for p in (4, 10, 100) for lr in (1.0, 4.0, 10.0)]
    found += [plain_2a("RTRL", 4, lr, "fit") for lr in (1.0, 4.0, 10.0)]
    found += [plain_2a("BPTT", 100, lr) for lr in (1.0, 4.0, 10.0)]
    for reading in READINGS:
        found += [experiment_1(blocks, size, lr, reading) for blocks, size, lr in ONE]
        found += [experiment_2a(reading), experiment_2b(reading), experiment_5(100, reading)]
        found += [experiment_2c(int(line["q"]), int(line["p"]), reading) for line in table(3)]
        for number, variant in THREE:
            found += [experiment_3(variant, int(line["T"]), int(line["N"]), reading) for line in table(number)]
        found += [experiment_4(int(line["T"]), reading) for line in table(7)]
    found += [experiment_6(2), experiment_6(3), experiment_6(3, "fit")]
    names = [e.name for e in found]
    return tuple(sorted(found, key=lambda e: (e.table or 0, names.index(e.name))))  # readings side by side


def quick() -> tuple[Experiment, ...]:
    """Every experiment at its shortest published length, a few trials each."""
    chosen = {
        "1 3x2 lr=0.5": 3, "1 ELM hidden=15": 1, "2a RTRL p=4 lr=1": 2, "2a p=100": 2, "2b p=100": 1, "2c q=50 p=50": 3,
        "3a T=100 N=3": 4, "3b T=100 N=3": 4, "3c T=100 N=3": 3, "4 T=100": 4, "5 T=100": 2, "6a": 4, "6b": 2,
    }  # fmt: skip
    return tuple(replace(e, trials=chosen[e.name]) for e in paper() if e.name in chosen)


def beyond() -> tuple[Experiment, ...]:
    """Claims of the paper without a table, each with the experiment of a table that it is compared with."""
    against = {e.claim.against for e in claims() if e.claim}
    return (*claims(), *(e for e in paper() if e.label in against))


def distributions() -> tuple[Experiment, ...]:
    """The experiments whose distributions of sequences until success are shown, with many trials each."""
    wanted = ("2c q=50 p=50/fit", "3a T=100 N=3/text", "4 T=100/fit", "6a/text")
    return tuple(replace(e, trials=MANY) for e in paper() if e.label in wanted)


def modern() -> tuple[Experiment, ...]:
    """The cells of today on tasks of 1997. They need the library's layers, which the other profiles do not load."""
    from longlag.lab import modern

    return modern.modern()


def everything() -> tuple[Experiment, ...]:
    """Every row of the tables, every claim, every option, and the cells of today."""
    return (*paper(), *claims(), *options(), *modern())


PROFILES = {
    "quick": quick, "paper": paper, "beyond": beyond, "options": options, "distributions": distributions,
    "modern": modern, "all": everything,
}  # fmt: skip


def select(profile: str, wanted: Sequence[str] = ()) -> tuple[Experiment, ...]:
    """The experiments of a profile whose number, name, "name/reading" or method is wanted; all if nothing is.

    >>> [f"{e.name}/{e.reading}" for e in select("quick", ["4", "6a"])]
    ['4 T=100/text', '4 T=100/fit', '6a/text']
    """
    if profile not in PROFILES:
        raise ValueError(f"reproduce: profile must be one of {tuple(PROFILES)}, got {profile!r}")
    chosen = PROFILES[profile]()
    if wanted and profile != "all":
        chosen += tuple(e for e in claims() if e not in chosen)  # a claim may be asked for by name in any profile
    for want in wanted:
        if not any(want in labels(e) for e in chosen):
            raise ValueError(f"reproduce: experiment must be one of {profile}'s, got {want!r}{nearest(want, chosen)}")
    return tuple(e for e in chosen if not wanted or set(wanted) & set(labels(e)))


def labels(experiment: Experiment) -> tuple[str, ...]:
    """What an experiment may be called: number or name, alone or with a reading, or its method."""
    e = experiment
    return e.number, e.name, f"{e.number}/{e.reading}", e.label, e.method


def nearest(want: str, experiments: Iterable[Experiment]) -> str:
    """A hint at the names most like one that does not exist."""
    known = sorted({label for e in experiments for label in labels(e)})
    found = difflib.get_close_matches(want, known, 3, 0.3) or sorted({e.number for e in experiments})
    return "; did you mean " + " or ".join(repr(name) for name in found) + "?"
