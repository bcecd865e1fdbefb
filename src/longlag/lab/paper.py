"""The figures of "Long Short-Term Memory" (Hochreiter and Schmidhuber, Neural Computation 9, 1997), Tables 1 to 9."""

import csv
from functools import cache
from importlib.resources import files


@cache
def table(number: int) -> tuple[dict[str, str], ...]:
    """The rows of a table, as printed.

    >>> table(7)[0]["wrong"], table(7)[0]["after"]
    ('1 of 2560', '74000')
    """
    text = files("longlag.lab").joinpath("paper", f"table{number}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def row(number: int, **cells: object) -> dict[str, str]:
    """The one row of a table that has these cells.

    >>> row(3, q=1000, p=50)["after"]
    '203000'
    """
    found = [line for line in table(number) if all(line[name] == str(value) for name, value in cells.items())]
    if len(found) != 1:
        raise LookupError(f"table {number}: cells must name one row, got {len(found)} for {cells}")
    return found[0]
