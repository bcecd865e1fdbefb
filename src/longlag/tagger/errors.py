"""Error analysis of a tagger: by tag, by confusion, by word; as text for a terminal and as one HTML page."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from longlag.tagger.data import Sentence
from longlag.tagger.model import Tagger
from longlag.tagger.score import Count, Score, score
from longlag.tagger.vocabulary import normal

EXAMPLES = 3  # of every confusion
AROUND = 4  # words shown on either side
SHOWN = 25  # confusions and words on the page

STYLE = """
body{font:16px/1.45 system-ui,sans-serif;margin:0 auto;max-width:60rem;padding:1rem;color:#222;background:#fff}
h1,td:first-child,td.text{overflow-wrap:anywhere}h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;font-size:.9rem}th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid #ddd;
vertical-align:top}
th:first-child,td:first-child,td.text,th.text{text-align:left}
mark{background:#fde293;padding:0 .15rem}.dim{color:#666}.pair{white-space:nowrap;margin-right:1rem}
@media(max-width:40rem){table{font-size:.8rem}th{font-size:.7rem}th,td{padding:.2rem .25rem}
.confusions tr{display:grid;grid-template-columns:1fr 1fr 3.5rem;border-bottom:1px solid #ddd}
.confusions td,.confusions th{border:0}.confusions td.text{grid-column:1/-1}.confusions th.text{display:none}}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}th,td,.confusions tr{border-color:#444}
mark{background:#7a5d00;color:#fff}.dim{color:#999}}
"""


class Example(NamedTuple):
    """A word in its surroundings."""

    before: str
    word: str
    after: str


@dataclass(frozen=True)
class Errors:
    """What `analyse` found."""

    score: Score
    known: tuple[int, int]  # words seen in training: right, all
    unknown: tuple[int, int]
    confusion: Counter[tuple[str, str]]  # (right tag, guessed tag)
    examples: dict[tuple[str, str], list[Example]]
    words: Counter[tuple[str, str, str]]  # (word, right tag, guessed tag)

    @property
    def mistakes(self) -> list[tuple[tuple[str, str], int]]:
        """Confusions, the most frequent first."""
        return [(pair, n) for pair, n in self.confusion.most_common() if pair[0] != pair[1]]

    def lines(self) -> list[str]:
        """A summary for a terminal."""
        found = [f"accuracy      {_share(self.score.right, self.score.words)}"]
        found += [f"  known words {_share(*self.known)}", f"  unknown     {_share(*self.unknown)}"]
        if (whole := self.score.spans) is not None:
            found.append(f"spans         {_figures(whole)}")
            width = max(11, *map(len, self.score.kinds))
            found += [f"  {kind:<{width}} {_figures(count)}" for kind, count in self.score.kinds.items()]
        if self.mistakes:
            found.append("most frequent mistakes (right tag, guess, how often, for example)")
        width = max(map(len, self.score.tags), default=0)
        for (right, guess), n in self.mistakes[:8]:
            words = ", ".join(dict.fromkeys(example.word for example in self.examples[right, guess]))
            found.append(f"  {right:<{width}}  {guess:<{width}} {n:>5}  {words}")
        return found

    def html(self, title: str) -> str:
        """One page with everything, no other file needed."""
        parts = [f"<h1>Errors: {escape(title)}</h1>", self._summary()]
        counts = {"Spans by kind": self.score.kinds, "Tags": self.score.tags}
        parts += [f"<h2>{name}</h2>{_counts(some)}" for name, some in counts.items() if some]
        parts += ["<h2>Most frequent confusions</h2>", self._confusions()]
        rows = [(word, right, guess, n) for (word, right, guess), n in self.words.most_common(SHOWN)]
        parts += ["<h2>Most frequent mistakes by word</h2>", _table(["word", "right", "guess", "times"], rows)]
        parts += ["<h2>Guesses by right tag</h2>", self._guesses()]
        head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        whole = f"{head}<title>Errors: {escape(title)}</title><style>{STYLE}</style>"
        return f'<!doctype html><html lang="en">{whole}<body>{"".join(parts)}</body></html>\n'

    def _summary(self) -> str:
        rows = [
            ("all words", _share(self.score.right, self.score.words)),
            ("words seen in training", _share(*self.known)),
            ("unknown words", _share(*self.unknown)),
        ]
        if self.score.spans is not None:
            rows.append(("spans", _figures(self.score.spans)))
        return _table(["", "right"], rows)

    def _confusions(self) -> str:
        rows = []
        for (right, guess), n in self.mistakes[:SHOWN]:
            shown = "<br>".join(
                f"{escape(e.before)} <mark>{escape(e.word)}</mark> {escape(e.after)}"
                for e in self.examples[right, guess]
            )
            rows.append(f"<tr>{_cells((right, guess, n))}<td class=text>{shown}</td></tr>")
        head = "<tr><th>right<th>guess<th>times<th class=text>for example</tr>"
        return f"<table class=confusions>{head}{''.join(rows)}</table>"

    def _guesses(self) -> str:
        """The confusion matrix without its zeros, a row per right tag: as wide as the screen, however many tags."""
        guesses: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for (right, guess), n in self.confusion.most_common():
            guesses[right].append((guess, n))
        rows = []
        for right in sorted(guesses):
            wrong = " ".join(
                f"<span class=pair>{escape(guess)} {n:,}</span>" for guess, n in guesses[right] if guess != right
            )
            total = sum(n for _, n in guesses[right])
            rows.append(f"<tr>{_cells((right, total, self.confusion[right, right]))}<td class=text>{wrong}</td></tr>")
        head = "<tr><th>right tag<th>words<th>guessed right<th class=text>guessed instead, and how often</tr>"
        return f"<table>{head}{''.join(rows)}</table>"


def analyse(tagger: Tagger, sentences: Sequence[Sentence], guessed: Sequence[Sequence[str]]) -> Errors:
    """Compare a tagger's tags with the right ones.

    Args:
        tagger: whose words seen in training are the known ones.
        sentences: with their right tags.
        guessed: the tagger's tags.
    """
    confusion: Counter[tuple[str, str]] = Counter()
    words: Counter[tuple[str, str, str]] = Counter()
    examples: dict[tuple[str, str], list[Example]] = defaultdict(list)
    seen = {True: [0, 0], False: [0, 0]}
    for sentence, tags in zip(sentences, guessed):
        for k, (word, right, guess) in enumerate(zip(sentence.words, sentence.tags, tags)):
            tally = seen[normal(word) in tagger.vocabulary.words]
            tally[0] += right == guess
            tally[1] += 1
            confusion[right, guess] += 1
            if right != guess:
                words[word, right, guess] += 1
                if len(examples[right, guess]) < EXAMPLES:
                    examples[right, guess].append(_example(sentence.words, k))
    found = score([s.tags for s in sentences], guessed)
    known, unknown = (tuple(seen[kind]) for kind in (True, False))
    return Errors(found, (known[0], known[1]), (unknown[0], unknown[1]), confusion, dict(examples), words)


def _example(words: Sequence[str], k: int) -> Example:
    before, after = words[max(0, k - AROUND) : k], words[k + 1 : k + 1 + AROUND]
    return Example(" ".join(before), words[k], " ".join(after))


def _share(right: int, words: int) -> str:
    return f"{100 * right / words:.2f} % of {words:,}" if words else "none"


def _figures(c: Count) -> str:
    return f"precision {100 * c.precision:.2f}  recall {100 * c.recall:.2f}  F1 {100 * c.f1:.2f}  ({c.there:,} spans)"


def _counts(some: dict[str, Count]) -> str:
    rows = [
        (name, f"{100 * c.precision:.1f}", f"{100 * c.recall:.1f}", f"{100 * c.f1:.1f}", c.there, c.found)
        for name, c in some.items()
    ]
    return _table(["", "precision", "recall", "F1", "in data", "guessed"], rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    top = "".join(f"<th>{escape(name)}" for name in head)
    return f"<table><tr>{top}</tr>{''.join(f'<tr>{_cells(row)}</tr>' for row in rows)}</table>"


def _cells(row: Sequence[object]) -> str:
    return "".join(f"<td>{escape(f'{value:,}' if isinstance(value, int) else str(value))}" for value in row)
