"""The distribution of sequences until success: quantiles, fitted forms, and what the paper's few trials would show."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from scipy import stats

from longlag.lab.experiment import Experiment
from longlag.lab.profiles import distributions
from longlag.report.statistics import wilson
from longlag.report.verdicts import Result, afters

ENOUGH = 60  # trials; fewer make no distribution
QUANTILES = (5, 25, 50, 75, 95)
FORMS = {"lognormal": stats.lognorm, "gamma": stats.gamma, "Weibull": stats.weibull_min}
DRAWS = 20_000
FACTOR = 1.25


@dataclass(frozen=True)
class Form:
    """A form fitted by maximum likelihood from 0 on: its log-likelihood per trial, and its distance D from the trials.

    D is the largest gap between the two distribution functions (Kolmogorov and Smirnov).
    """

    name: str
    shape: float
    scale: float
    likelihood: float
    distance: float

    def density(self, x: np.ndarray) -> np.ndarray:
        """Its density."""
        return FORMS[self.name].pdf(x, self.shape, scale=self.scale)

    @property
    def words(self) -> str:
        """Parameters as one writes them."""
        if self.name == "lognormal":
            return f"lognormal, ln n from N({log(self.scale):.2f}, {self.shape:.2f}²)"
        return f"{self.name}, shape {self.shape:.2f}, scale {self.scale:,.0f}"


@dataclass(frozen=True)
class Distribution:
    """Sequences until the last goal of one experiment.

    better: how often as many trials as the paper's, drawn from ours, have its success rate and at most its mean.
    near: how often they have its success rate and a mean within a factor of 1.25.
    """

    experiment: Experiment
    trials: int
    found: tuple[int, ...]
    rate: tuple[float, float]
    quantiles: tuple[float, ...]
    forms: tuple[Form, ...]  # best first
    drawn: int
    better: float
    near: float
    spread: tuple[float, float]  # 95 % of the means of so many trials

    @property
    def words(self) -> str:
        """The findings in sentences."""
        e, after = self.experiment, self.experiment.paper[-1].after
        n, k = self.trials, len(self.found)
        low, high = self.rate
        best, *others = self.forms
        rest = ", ".join(f"{form.name} {best.likelihood - form.likelihood:.3f}" for form in others)
        return (
            f"{k:,} of {n:,} trials succeed ({k / n:.1%}; {low:.1%} to {high:.1%}), after {np.mean(self.found):,.0f} "
            f"sequences on average, standard deviation {np.std(self.found, ddof=1):,.0f}. Best form: {best.words} "
            f"(D = {best.distance:.3f}); log-likelihood per trial lost by {rest}. Of {self.drawn} trials drawn at "
            f"random, as many as the paper ran, {self.better:.0%} of the time the paper's {e.success:g} % succeed "
            f"and their mean is at most its {after:,}; {self.near:.0%} of the time the mean is within a factor of "
            f"{FACTOR:g}. 95 % of such means lie between {self.spread[0]:,.0f} and {self.spread[1]:,.0f}."
        )


def fitted(values: Sequence[float]) -> tuple[Form, ...]:
    """The forms fitted to positive values, the likeliest first.

    >>> [form.name for form in fitted(np.random.default_rng(0).lognormal(10, 0.5, 500))][0]
    'lognormal'
    """
    found = []
    for name, family in FORMS.items():
        shape, _, scale = family.fit(values, floc=0)
        likelihood = float(np.mean(family.logpdf(values, shape, scale=scale)))
        distance = float(stats.kstest(values, family(shape, scale=scale).cdf).statistic)
        found.append(Form(name, float(shape), float(scale), likelihood, distance))
    return tuple(sorted(found, key=lambda form: -form.likelihood))


def distribution_of(result: Result) -> Distribution:
    """What the trials of one experiment are distributed like."""
    e, trials = result.experiment, len(result.records)
    found = afters(result.records, len(e.stop.goals) - 1)
    after, drawn = e.paper[-1].after, e.paper_trials
    assert after is not None
    assert e.success is not None
    rng = np.random.default_rng(97)
    everything = np.array([*map(float, found), *[np.nan] * (trials - len(found))])
    samples = rng.choice(everything, (DRAWS, drawn))
    succeeded = (~np.isnan(samples)).sum(1)
    means = np.nansum(samples, axis=1) / np.maximum(succeeded, 1)
    right = succeeded >= round(e.success / 100 * drawn)
    near = (means <= FACTOR * after) & (means >= after / FACTOR)
    low, high = np.percentile(means[succeeded > 0], [2.5, 97.5])
    return Distribution(
        e, trials, tuple(found), wilson(len(found), trials), tuple(np.percentile(found, QUANTILES)), fitted(found),
        drawn, float((right & (means <= after)).mean()), float((right & near).mean()), (float(low), float(high)),
    )  # fmt: skip


def distributions_of(results: Sequence[Result]) -> list[Distribution]:
    """Of the experiments of the profile "distributions" that have enough trials."""
    wanted = {e.label for e in distributions()}
    there = [r for r in results if r.experiment.label in wanted and len(r.records) >= ENOUGH]
    return [distribution_of(result) for result in there if any(record.success for record in result.records)]
