"""CRF loss (forward + backward) and decoding: ours beside pytorch-crf, in one run, on one and two threads.

    pip install --group bench && python benchmarks/crf.py [repetitions]

Nothing is timed before both agree: log-likelihood and all gradients in float64 to 1e-9, and the decoded tags. The two
are called in turn, so that a busy machine slows both; a row gives the median of the wall times, the distance between
their quartiles, and the ratio of the medians.
"""

import sys
import time

import torch
import torchcrf  # pyright: ignore[reportMissingImports]  (only in the dependency group "bench")
from _rows import append

import longlag as ll
from longlag.cli.bench import middle

B, T, K = 32, 128, 20
GOALS = {"loss": 3.0, "decode": 5.0}


def problem(dtype: torch.dtype, padded: bool):
    """The same weights in both layers, emissions (B, T, K), tags and mask (B, T)."""
    torch.manual_seed(0)
    theirs = torchcrf.CRF(K, batch_first=True).to(dtype)
    ours = ll.CRF(K, dtype=dtype)
    ours.load_state_dict(theirs.state_dict())
    emissions, tags = torch.randn(B, T, K, dtype=dtype, requires_grad=True), torch.randint(K, (B, T))
    lengths = torch.randint(T // 2, T + 1, (B, 1)) if padded else torch.full((B, 1), T)
    return ours, theirs, emissions, tags, torch.arange(T) < lengths


def loss(crf, emissions, tags, mask):
    """Forward and backward; returns everything that was computed."""
    crf.zero_grad()
    emissions.grad = None
    value = -crf(emissions, tags, mask, reduction="mean")
    value.backward()
    return [value.detach(), emissions.grad, *(p.grad for _, p in sorted(crf.named_parameters()))]


def decode(crf, emissions, tags, mask):
    with torch.no_grad():
        return crf.decode(emissions, mask)


def gate() -> None:
    """Both agree, or nothing is timed."""
    for padded in (False, True):
        ours, theirs, *data = problem(torch.float64, padded)
        for a, b in zip(loss(ours, *data), loss(theirs, *data)):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
        assert decode(ours, *data) == decode(theirs, *data)
    print("gate: log-likelihood, gradients and decoded tags agree with pytorch-crf in float64")


def timed(call, *arguments) -> float:
    start = time.perf_counter()
    call(*arguments)
    return 1e3 * (time.perf_counter() - start)


def row(call, padded: bool, repetitions: int) -> None:
    ours, theirs, *data = problem(torch.float32, padded)
    for crf in (ours, theirs):
        call(crf, *data)
    times = [[timed(call, crf, *data) for crf in (ours, theirs)] for _ in range(repetitions)]
    (value, spread), (baseline, _) = (middle(list(one)) for one in zip(*times))
    kind = "padded" if padded else "full"
    append(f"crf: {call.__name__} ({B}, {T}, {K}) {kind}", value, "ms", baseline=baseline, spread=spread)
    print(
        f"    {baseline / value:.1f} times faster than pytorch-crf {torchcrf.__version__}, goal {GOALS[call.__name__]}"
    )


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    gate()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for call in (loss, decode):
            for padded in (False, True):
                row(call, padded, repetitions)


if __name__ == "__main__":
    main()
