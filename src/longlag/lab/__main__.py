"""`python -m longlag.lab`: the trials without terminal pictures or pages; needs only NumPy, Numba, torch and joblib."""

import argparse
import shlex
import sys

from longlag.lab.profiles import FIRST_SEED, PROFILES, select
from longlag.lab.run import Progress, described, reproduce
from longlag.lab.store import StoreError


def arguments(words: list[str]) -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m longlag.lab", description="Run trials of the 1997 experiments.")
    parser.add_argument("--experiment", action="append", default=[], help="number, name or topic; may be repeated")
    parser.add_argument("--profile", default="quick", choices=tuple(PROFILES))
    parser.add_argument("--trials", type=int, help="per experiment, instead of the profile's number")
    parser.add_argument("--seed", type=int, default=FIRST_SEED)
    parser.add_argument("--jobs", type=int, help="processes; all cores by default")
    parser.add_argument("--backend", default="local")
    parser.add_argument("--address", help="of a running Dask or Ray cluster")
    parser.add_argument("--out", default="runs/hs97", help="folder of the results, or postgresql://user@host/database")
    return parser.parse_args(words)


def line(progress: Progress) -> str:
    """One trial in words."""
    p, r = progress, progress.record
    ended = f"success after {r.sequences:,}" if r.success else f"no success in {r.sequences:,}"
    return (
        f"{p.experiment.name}/{p.experiment.reading} seed {r.seed}: {ended}; {p.done}/{p.wanted}, {p.left:.0f} s left"
    )


def main(words: list[str]) -> int:
    """Run, print a line per trial, and say how to go on if interrupted."""
    asked = arguments(words)
    command = described("python -m longlag.lab", words)
    try:
        outcome = reproduce(
            select(asked.profile, asked.experiment), asked.out, trials=asked.trials, seed=asked.seed, jobs=asked.jobs,
            backend=asked.backend, address=asked.address, announce=lambda progress: print(line(progress), flush=True),
            say=lambda sentence: print(sentence, flush=True), command=command,
        )  # fmt: skip
    except KeyboardInterrupt:
        again = shlex.join(["python", "-m", "longlag.lab", *words])
        print(f"\nstopped; finished trials are kept. To go on: {again}", file=sys.stderr)
        return 130
    except (ValueError, StoreError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{outcome.computed} trials computed, {outcome.known} known, {outcome.seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
