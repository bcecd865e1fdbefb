"""Learn to read dates: "Sunday, 3rd of May 1998" -> "1998-05-03", character by character, with attention.

    python examples/dates.py [--updates 600] [--plot FILE.png]

Dates of the test are never seen in training. The picture shows where the decoder looked for each character it wrote.
"""

from __future__ import annotations

import argparse
import datetime
import random
import time

import torch
from torch import Tensor

import longlag as ll
from longlag.layers import schedules

MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
PAD, START, END = "_", "<", ">"  # one character each
READ = {
    c: i for i, c in enumerate(PAD + " ,./-" + "0123456789" + "".join(sorted(set("".join(MONTHS + DAYS) + "stndrhof"))))
}
WRITE = {c: i for i, c in enumerate(START + END + "-0123456789")}
WRITTEN = list(WRITE)
FIRST, DAYS_IN_ALL = datetime.date(1900, 1, 1), 200 * 365


def ordinal(day: int) -> str:
    return f"{day}{'th' if 10 <= day % 100 <= 20 else {1: 'st', 2: 'nd', 3: 'rd'}.get(day % 10, 'th')}"


def written(date: datetime.date, rng: random.Random) -> str:
    """A date as people write it; day before month where both are numbers."""
    month, weekday = MONTHS[date.month - 1], DAYS[date.weekday()]
    month = rng.choice([month, month[:3]])
    return rng.choice(
        [
            f"{date.day} {month} {date.year}",
            f"{month} {date.day}, {date.year}",
            f"{weekday}, {ordinal(date.day)} of {month} {date.year}",
            f"{weekday[:3]} {date.day} {month} {date.year}",
            f"{date.day}/{date.month}/{date.year}",
            f"{date.day:02d}.{date.month:02d}.{date.year}",
            f"{date.year}/{date.month:02d}/{date.day:02d}",
        ]
    )


def batch(dates: list[datetime.date], rng: random.Random) -> tuple[Tensor, Tensor, Tensor]:
    """Source tokens (S, B), their lengths (B,), target tokens (11, B) with the end token."""
    texts = [written(date, rng) for date in dates]
    longest = max(map(len, texts))
    source = torch.tensor([[READ[c] for c in text.ljust(longest, PAD)] for text in texts]).T
    targets = torch.tensor([[WRITE[c] for c in date.isoformat() + END] for date in dates]).T
    return source, torch.tensor([len(text) for text in texts]), targets


def build() -> ll.Seq2Seq:
    encoder = ll.LSTM(32, 64, bidirectional=True)
    decoder = ll.LSTM(16 + 128, 64)
    look = ll.Attention("additive", 64, 128, size=64)
    return ll.Seq2Seq(
        encoder, decoder, len(WRITE), source_tokens=len(READ), attention=look, start=WRITE[START], end=WRITE[END]
    )


def exact(model: ll.Seq2Seq, dates: list[datetime.date], rng: random.Random) -> float:
    """Share of dates written without a single mistake, the network hearing only itself."""
    source, lengths, targets = batch(dates, rng)
    found = model.greedy(source, source_lengths=lengths, max_length=len(targets))
    if len(found.tokens) < len(targets):
        return 0.0
    return float((found.tokens == targets).all(0).float().mean())


def train(model: ll.Seq2Seq, dates: list[datetime.date], updates: int, rng: random.Random) -> None:
    """Teacher forcing that fades to a coin per character; the learning rate falls to 0."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 - k / updates)
    teacher, began = schedules.linear(0.5 / updates), time.perf_counter()
    for k in range(1, updates + 1):
        source, lengths, targets = batch(rng.sample(dates, 64), rng)
        loss = model.loss(source, targets, source_lengths=lengths, teacher=teacher(k))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        if k % 100 == 0:
            seconds = time.perf_counter() - began
            left = seconds / k * (updates - k)
            print(
                f"{k:5d} of {updates}   loss {float(loss.detach()):.4f}   {seconds:4.0f} s, {left:.0f} s left",
                flush=True,
            )


def plot(model: ll.Seq2Seq, date: datetime.date, file: str) -> None:
    """Where the decoder looked, one panel per way to write the date."""
    from matplotlib.figure import Figure

    rng, texts = random.Random(0), {}
    while len(texts) < 3:
        text = written(date, rng)
        texts.setdefault(("of" in text, "." in text, "," in text), text)
    figure = Figure(figsize=(9, 6.2), layout="constrained")
    axes = figure.subplots(3, 1)
    for axis, text in zip(axes, texts.values()):
        source = torch.tensor([[READ[c]] for c in text])
        found = model.greedy(source, max_length=11)
        weights = model(source, found.tokens).weights
        assert weights is not None
        axis.imshow(weights[:, 0].detach(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axis.set_xticks(range(len(text)), [c if c != " " else "␣" for c in text])
        axis.set_yticks(range(len(found.tokens)), [WRITTEN[i].replace(END, "end") for i in found.tokens[:, 0].tolist()])
        axis.tick_params(length=0)
        axis.set_ylabel("written")
    axes[-1].set_xlabel("read")
    figure.suptitle("Attention while writing a date: darker is more weight")
    figure.savefig(file, dpi=110)
    print(f"attention: {file}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--plot", metavar="FILE.png")
    options = parser.parse_args()
    torch.manual_seed(0)
    rng, began = random.Random(0), time.perf_counter()
    dates = [FIRST + datetime.timedelta(days=n) for n in range(DAYS_IN_ALL)]
    rng.shuffle(dates)
    test, known = dates[:2000], dates[2000:]
    model = build()
    train(model, known, options.updates, rng)
    print(f"exact match on {len(test)} unseen dates: {exact(model, test, random.Random(1)):.2%}", end="")
    print(f" ({time.perf_counter() - began:.0f} s in all)")
    for date in test[:4]:
        text = written(date, rng)
        tokens = model.greedy(torch.tensor([[READ[c]] for c in text]), max_length=11).tokens[:, 0].tolist()
        print(f"  {text:32s} -> {''.join(WRITTEN[i] for i in tokens).rstrip(END)}")
    if options.plot:
        plot(model, datetime.date(1998, 5, 3), options.plot)


if __name__ == "__main__":
    main()
