"""Verdicts on what the paper says without figures: confirmed, contradicted, undecided; measured where it is silent."""

import math
from collections.abc import Sequence

import numpy as np

from longlag.lab.experiment import Experiment
from longlag.lab.trials import Record
from longlag.report.statistics import smaller

FEW = 5  # trials that decide nothing


def summary(found: Sequence[int], trials: int, what: str, limit: str = "") -> str:
    """Successes and mean of some trials, in words."""
    mean = f", {what} {np.mean(found):,.0f} sequences on average" if found else ""
    return f"{len(found)} of {trials} trials succeed{limit if len(found) < trials else ''}{mean}."


def claim_verdict(
    experiment: Experiment,
    found: Sequence[int],
    trials: int,
    other: Sequence[int],
    other_trials: int,
    what: str = "after",
) -> tuple[str, str]:
    """The verdict on a claim and its reason.

    found, other: sequences until success of the experiment and of the one it is compared with; `what` they count. A
    comparison ranks all trials by sequences, failures last (Mann and Whitney's test, one-sided, 5 %).
    """
    claim = experiment.claim
    assert claim is not None
    if trials == 0:
        return "not run", "No trial in this store."
    reason = summary(found, trials, what, f" within {experiment.cap:,} sequences")
    if other_trials:
        reason += f" Compared with {claim.against}: {summary(other, other_trials, what)}"
    if not claim.where:  # a question of ours
        return "measured", reason
    if trials < FEW:
        return "undecided", f"{reason} Few trials."
    if claim.expects in ("fails", "succeeds"):
        rate = len(found) / trials
        good, bad = (rate == 0, rate > 0.5) if claim.expects == "fails" else (rate > 0.5, rate == 0)
        return "confirmed" if good else "contradicted" if bad else "undecided", reason
    if not other_trials:
        return "not run", f"{reason} No trial of {claim.against} in this store to compare with."
    mine, yours = ranked(found, trials), ranked(other, other_trials)
    faster, slower = smaller(mine, yours), smaller(yours, mine)
    wanted, opposite = (faster, slower) if claim.expects == "faster" else (slower, faster)
    word = "confirmed" if wanted < 0.05 else "contradicted" if opposite < 0.05 else "undecided"
    return word, f"{reason} Is it {claim.expects}? p = {wanted:.2g}."


def ranked(found: Sequence[int], trials: int) -> list[float]:
    """Sequences until success of all trials; infinity for a failure."""
    return [*map(float, found), *[math.inf] * (trials - len(found))]


def sequences(records: Sequence[Record], stage: int, alone: bool) -> list[int]:
    """Sequences until a stage of the trials that reached it; alone: counted from the stage before."""
    done = [record.reached for record in records if len(record.reached) > stage]
    return [reached[stage].sequences - (reached[stage - 1].sequences if alone else 0) for reached in done]


def judged(
    experiment: Experiment, stage: int, records: Sequence[Record], compared: Sequence[Record]
) -> tuple[str, str]:
    """The verdict on one stage of a claim's experiment.

    With several stages, the claim is about the last one alone. Trials are compared at the same stage.
    """
    goals = experiment.stop.goals
    if stage < len(goals) - 1:
        found = sequences(records, stage, alone=False)
        return (
            ("measured", summary(found, len(records), "after")) if records else ("not run", "No trial in this store.")
        )
    alone = len(goals) > 1
    what = f"from {goals[-2].name} to {goals[-1].name} in" if alone else "after"
    ours, theirs = (sequences(each, stage, alone) for each in (records, compared))
    return claim_verdict(experiment, ours, len(records), theirs, len(compared), what)
