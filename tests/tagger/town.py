"""Small made-up data: parts of speech that endings tell, and names that their surroundings tell."""

import random
from pathlib import Path

from longlag.tagger.train import Settings, train_tagger

NOUNS, VERBS = ["cat", "dog", "bird", "cow", "fox"], ["sees", "likes", "finds"]
PEOPLE, PLACES = ["Ann", "Bob", "Eve Gray"], ["Rome", "New York", "Oslo"]
SMALL = {"epochs": 3, "hidden": 6, "batch": 8, "rate": 0.02}


def speech(n=60, seed=0):
    """Sentences as lists of (word, tag)."""
    draw = random.Random(seed)

    def phrase():
        return [(draw.choice(["the", "a"]), "DET"), (draw.choice(NOUNS) + draw.choice(["", "s"]), "NOUN")]

    def chance():  # what nobody can learn: scores stay below 1 and go up and down
        return "fish", draw.choice(["NOUN", "VERB"])

    return [[*phrase(), (draw.choice(VERBS), "VERB"), *phrase() * draw.randint(0, 2), chance()] for _ in range(n)]


def names(n=60, seed=0, scheme="BIO"):
    draw = random.Random(seed)
    found = []
    for _ in range(n):
        sentence = []
        for kind, some, before in (("per", PEOPLE, "meet"), ("loc", PLACES, "in")):
            words = draw.choice(some).split()
            letters = {"BIO": ["B", "BI"], "BIOES": ["S", "BE"], "BILOU": ["U", "BL"]}[scheme][len(words) - 1]
            sentence += [(before, "O")] + [(word, f"{letter}-{kind}") for word, letter in zip(words, letters)]
        found.append(sentence)
    return found


def text(sentences, tab="\t", end="\n"):
    return "".join("".join(f"{word}{tab}{tag}{end}" for word, tag in sentence) + end for sentence in sentences)


def write(path, sentences):
    path = Path(path)
    path.write_text(text(sentences), encoding="utf-8")
    return path


def town(folder, make=speech, watch=None, **settings):
    """A trained model, and the files it was trained on."""
    train, dev = write(folder / "train.tsv", make(60, 0)), write(folder / "dev.tsv", make(20, 1))
    tagger = train_tagger(train, dev, folder / "model", Settings(**{**SMALL, **settings}), watch=watch)
    return tagger, train, dev
