"""Split raw text into words, by rules close to those of the English treebanks. Only white space is lost.

In this order, the first that fits wins:

1. an address: ``https://…``, ``www.…`` (without closing punctuation), ``me@there.org``
2. ``@name`` and ``#topic``
3. a smiley (``:-)``) or an emoji with all that joins it (skin, ZWJ, flags)
4. a number with its inner points, commas, colons and slashes: ``1,000.5``, ``10:30``
5. an abbreviation of single letters: ``U.S.``; and titles: ``Mr.``
6. the ending of a contraction: ``n't``, ``'s``, ``'re``, ``’ll`` …, cut off its word
7. a word: letters, digits, underscores, combining marks and invisible joiners; hyphens part words
8. a run of the same sign: ``...``, ``--``, ``!!!``; else one sign by itself
"""

from __future__ import annotations

import re
from functools import cache
from unicodedata import category

CLITIC = r"(?:n['’]t|['’](?:s|m|d|re|ve|ll))(?!\w)"
EMOJI = r"[\u231a-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]"
PART = rf"{EMOJI}[\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*"
TITLES = "Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\\.g|i\\.e|a\\.m|p\\.m"


def tokenize(text: str) -> list[str]:
    """The words of a text.

    >>> tokenize("Don't e-mail me@there.org: it's £1,000.50 (U.S. only)...")
    ['Do', "n't", 'e', '-', 'mail', 'me@there.org', ':', 'it', "'s", '£', '1,000.50', '(', 'U.S.', 'only', ')', '...']
    >>> tokenize("#win 👩🏽‍🚀 :-) https://a.org/x?y=1.")
    ['#win', '👩🏽\u200d🚀', ':-)', 'https://a.org/x?y=1', '.']
    """
    return [found.group() for found in _pattern().finditer(text)]


@cache
def _pattern() -> re.Pattern[str]:
    letter = f"[\\w{_marks()}]"
    rules = [
        r"(?:https?://|www\.)\S+?(?=[.,;:!?)\]}\"'»”’]*(?:\s|$))",
        r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
        rf"[@#]{letter}+",
        r"[:;=8][-o^']?[()\[\]DPp/\\|*](?!\w)|<3(?!\d)",
        rf"[\U0001f1e6-\U0001f1ff]{{2}}|{PART}(?:\u200d{PART})*",
        rf"\d+(?:[.,:/]\d+)*(?!{letter})",
        rf"(?<![\w.])(?:(?:[^\W\d_]\.){{2,}}|(?:{TITLES})\.)",
        CLITIC,
        rf"{letter}+?(?={CLITIC})|{letter}+",
        r"(\S)\1*",
    ]
    return re.compile("|".join(rules))


def _marks() -> str:
    """Combining marks and invisible characters, which ``\\w`` leaves out though they are parts of words."""
    return "".join(chr(k) for k in range(0xAD, 0x10000) if category(chr(k)) in ("Mn", "Mc", "Me", "Cf"))
