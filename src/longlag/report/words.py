"""Names, readings and verdicts in sentences: what the codes of the experiments mean."""

import re

from longlag.lab.experiment import Experiment

BEYOND = 0  # the table number of rows beyond the tables
TITLES = {
    1: "Table 1: embedded Reber grammar (experiment 1)",
    2: "Table 2: noise-free and noisy sequences (experiments 2a, 2b)",
    3: "Table 3: long lags among distractors (experiment 2c)",
    4: "Table 4: two-sequence problem (experiment 3a)",
    5: "Table 5: noise on the signal as well (experiment 3b)",
    6: "Table 6: noisy targets (experiment 3c)",
    7: "Table 7: adding (experiment 4)",
    8: "Table 8: multiplication (experiment 5)",
    9: "Table 9: temporal order (experiments 6a, 6b)",
    BEYOND: "Beyond the tables: what the paper says without figures",
}
METHODS = {"ELM": "Elman's net", "RCC": "recurrent cascade-correlation", "CH": "the neural sequence chunker"}
PARTS = {
    "lr": "learning rate {}",
    "hidden": "{} hidden units",
    "T": "at least {} steps",
    "N": "class given by the first {}",
    "q": "lag of at least {} steps",
    "n_seq": "fewer than {} of the last 2,000 sequences wrong",
}
GOALS = {"ST1": "no test sequence wrong (ST1)", "ST2": "and a small mean error (ST2)"}
GOALS_3B = {"ST1": "fewer than 6 of 256 test sequences wrong (ST1)", "ST2": GOALS["ST2"]}


CHOSEN = {  # how a reading was chosen, before any trial that is reported
    "1/fit": "some 120 variants of outputs, targets, ranges of the weights, gate biases and direct connections, on "
    "seeds below 60",
    "2a/fit": "18 variants with softmax outputs on seeds 0 to 3, after 28 without that never came near; RTRL: 7 ranges "
    "of the weights on seeds below 40",
    "2b/fit": "17 variants with errors at the end only on seeds 0 to 2, after 28 with errors at every step of which "
    "none ever succeeded",
    "2c/fit": "about 16 variants in a prototype, on seeds 1 to 10",
    "3a/fit": "two reset values, on seeds 1 to 10",
    "3b/fit": "two reset values, on seeds 1 to 10; at T = 1000 two ranges of the weights and two ways to test, on "
    "seeds 0 to 3",
    "3c/fit": "two reset values, on seeds 1 to 5",
    "4/fit": "about 15 variants of the output unit and the first pair, on seeds 1 to 10, and 6 ranges of the weights "
    "on seeds 0 to 3, confirmed on seeds from 200 on",
    "5/fit": "4 combinations, on seeds 1 to 7",
    "6b/fit": "2 readings of the output gates, on seeds 200 to 211",
}


def part(word: str, experiment: str) -> str:
    """A part of a name in words: "lr=0.5" is "learning rate 0.5"."""
    key, _, value = word.partition("=")
    if key == "p" and value:
        return f"{value} distractor symbols" if experiment == "2c" else f"lag of {value} steps"
    if blocks := re.fullmatch(r"(\d+)x(\d+)", word):
        return f"{blocks[1]} blocks of {blocks[2]}"
    return PARTS[key].format(value) if key in PARTS else METHODS.get(word, word)


def title(number: str, name: str, goal: str = "") -> str:
    """An experiment in words.

    >>> title("1", "1 3x2 lr=0.5"), title("hidden units", "5 T=100 with 4 hidden units")
    ('LSTM, 3 blocks of 2, learning rate 0.5', 'experiment 5, at least 100 steps, with 4 hidden units')
    """
    words = name.split()
    experiment = words.pop(0) if re.fullmatch(r"\d[a-c]?", words[0]) else ""
    parts = [f"experiment {experiment}"] if experiment and experiment != number else []
    plain = ""  # words that are no codes stay together
    for word in [*words, ""]:
        is_code = "=" in word or re.fullmatch(r"\d+x\d+", word) or word in METHODS or word in ("RTRL", "BPTT")
        if plain and (is_code or not word):
            parts.append(plain)
            plain = ""
        if is_code:
            parts.append(part(word, experiment))
        elif word:
            plain = f"{plain} {word}".strip()
    if number in ("1", "2a", "2b") and not any(word.isalpha() for word in words):
        parts.insert(0, "LSTM")
    if goal:
        parts.append((GOALS_3B if number == "3b" else GOALS).get(goal) or part(goal, number))
    symbols = {"6a": "order of two symbols", "6b": "order of three symbols"}
    return ", ".join(parts) or symbols.get(name, name)


def reading_of(experiment: Experiment) -> str:
    """A reading in words."""
    if experiment.reading == "text":
        return "as the text says" if experiment.table else "settings of the text"
    return "nearest to the paper's figures (fit)" if experiment.table else "settings of the fit"
