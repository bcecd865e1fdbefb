"""Verdicts on what the paper says without figures: confirmed, contradicted, undecided."""

import math
from collections.abc import Sequence

import numpy as np

from longlag.lab.experiment import Experiment
from longlag.report.statistics import smaller


def summary(found: Sequence[int], trials: int) -> str:
    """Successes and mean of some trials, in words."""
    mean = f", after {np.mean(found):,.0f} sequences on average" if found else ""
    return f"{len(found)} of {trials} trials succeed{mean}"


def claim_verdict(
    experiment: Experiment, found: Sequence[int], trials: int, other: Sequence[int], other_trials: int
) -> tuple[str, str]:
    """The verdict on a claim and its reason.

    found, other: sequences until success of the experiment and of the one it is compared with. A comparison ranks all
    trials by sequences until success, failures last (Mann and Whitney's test, one-sided, 5 %).
    """
    claim = experiment.claim
    assert claim is not None
    if trials == 0:
        return "not run", "No trial in this store."
    ours = summary(found, trials)
    limit = "" if len(found) == trials else f" within {experiment.cap:,} sequences"
    theirs = f" Compared with {claim.against}: {summary(other, other_trials)}." if other_trials else ""
    if claim.expects in ("fails", "succeeds"):
        rate = len(found) / trials
        good, bad = (rate == 0, rate > 0.5) if claim.expects == "fails" else (rate > 0.5, rate == 0)
        word = "confirmed" if good else "contradicted" if bad else "undecided"
        return word, f"{ours}{limit}.{theirs}"
    if not other_trials:
        return "not run", f"{ours}{limit}. No trial of {claim.against} in this store to compare with."
    mine, yours = ranked(found, trials), ranked(other, other_trials)
    faster, slower = smaller(mine, yours), smaller(yours, mine)
    wanted, opposite = (faster, slower) if claim.expects == "faster" else (slower, faster)
    word = "confirmed" if wanted < 0.05 else "contradicted" if opposite < 0.05 else "undecided"
    return word, f"{ours}{limit}.{theirs} p = {wanted:.2g} for {claim.expects}."


def ranked(found: Sequence[int], trials: int) -> list[float]:
    """Sequences until success of all trials; infinity for a failure."""
    return [*map(float, found), *[math.inf] * (trials - len(found))]
