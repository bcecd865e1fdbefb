"""The whole report as JSON, for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from longlag.report import text
from longlag.report.collect import Collection
from longlag.report.distributions import QUANTILES, distributions_of
from longlag.report.today import heads, today
from longlag.report.verdicts import PaperRow, Row


def json_text(rows: Sequence[Row], paper: Sequence[PaperRow], collection: Collection) -> str:
    """Headline, every row, the paper's rows with their outcome, distributions, cells of today, and provenance."""
    found = {
        "headline": text.headline(paper),
        "seeds": text.freshness(paper),
        "sha256 of the trials": collection.digest,
        "trials": collection.trials,
        "processor seconds": round(collection.seconds),
        "codes": collection.codes,
        "paper's rows": [
            {"table": row.table, "name": row.name, "goal": row.goal, "outcome": row.outcome} for row in paper
        ],
        "rows": [asdict(row) for row in rows],
        "distributions": [
            {
                "experiment": each.experiment.label, "trials": each.trials, "successes": len(each.found),
                "success rate, 95 %": each.rate, "quantiles": dict(zip(map(str, QUANTILES), each.quantiles)),
                "forms": [asdict(form) for form in each.forms], "trials drawn": each.drawn,
                "paper's figure or better": each.better, "within a factor of 1.25": each.near,
            }
            for each in distributions_of(collection.results)
        ],
        "cells of today": [
            {"cell": line.cell, "rule": line.rule, **dict(zip(heads(), line.cells))}
            for line in today(collection.results)
        ],
        "runs": list(collection.runs),
    }  # fmt: skip
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"
