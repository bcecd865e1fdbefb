"""Saving mid-stream and going on: bit for bit, or not at all."""

import json
import re
import struct

import pytest
import torch
from helpers import DEFAULTS, randn
from learn.test_online import learner, weights
from torch import nn

import longlag as ll
from longlag.learn import (
    BPTT,
    RFLO,
    RTRL,
    UORO,
    LocalForward,
    Online,
    SnAp,
    TruncatedBPTT,
    TruncatedRTRL,
    squared_error,
)

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
}
LAYERS = {
    "local": (LocalForward(), lambda: ll.LocalFeedback(3, 4, constrain="forget", **DEFAULTS)),
    "local_network": (
        LocalForward(cross=True),
        lambda: ll.LocalFeedbackNetwork(3, [(1, 2, 1), (0, 2, 2)], (2, 1, 1), **DEFAULTS),
    ),
    "lstm97": (TruncatedRTRL(), lambda: ll.LSTM97(3, 2, 2, 1, 4, **DEFAULTS)),
    "lstm97_full": (RTRL(), lambda: ll.LSTM97(3, 2, 1, 0, 4, **DEFAULTS)),
    "lstm": (RTRL(), lambda: ll.LSTM(3, 4, 2, **DEFAULTS)),
    "jordan": (RTRL(), lambda: ll.Jordan(3, 5, 4, hidden_feedback=True, **DEFAULTS)),
    "snap": (SnAp(1), lambda: ll.LSTM(3, 4, **DEFAULTS)),
    "uoro": (UORO(), lambda: ll.GRU(3, 4, 2, **DEFAULTS)),
    "rflo": (RFLO(), lambda: ll.Leaky(3, 4, **DEFAULTS)),
    "window": (TruncatedBPTT(3), lambda: ll.GRU(3, 4, **DEFAULTS)),
    "bptt": (BPTT(), lambda: ll.GRU(3, 4, **DEFAULTS)),
    "frozen": (RTRL(), lambda: ll.EchoState(3, 5, 4, density=1.0, **DEFAULTS)),
}


def build(name="lstm", optimizer="Adam", seed=0, **options):
    torch.manual_seed(seed)
    rule, make = LAYERS[name]
    layer, readout = make(), nn.Linear(4, 2, dtype=torch.float64)
    chosen = OPTIMIZERS[optimizer]([*layer.parameters(), *readout.parameters()])
    return Online(layer, readout, squared_error, rule, chosen, **{"every": 2, "clip": 1.0, **options})


def live(online, x, d, steps):
    masks = {"active": torch.tensor([True, False]), "reset": torch.tensor([False, True])}
    return [online.step(x[t], None if t % 4 == 1 else d[t], **(masks if t % 5 == 2 else {})) for t in steps]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", LAYERS)
def test_bit_identical_continuation(name, optimizer, tmp_path):
    x, d = randn(20, 2, 3), randn(20, 2, 2, seed=1)
    online, file = build(name, optimizer), tmp_path / "learner.safetensors"
    live(online, x, d, range(7))  # 7 steps, an update at every second: gradients wait
    online.save(file)
    wanted = live(online, x, d, range(7, 20))

    other = build(name, optimizer, seed=1)
    live(other, x, d, range(2))
    other.load(file)
    ours = live(other, x, d, range(7, 20))
    assert all(torch.equal(a, b) for a, b in zip(ours, wanted, strict=True))
    assert all(torch.equal(p, weights(online)[key]) for key, p in weights(other).items())
    counts = ("steps", "updates", "skipped", "loss_now", "running_loss", "gradient_norm")
    assert all(getattr(online, c) == getattr(other, c) for c in counts)
    restored = Online.restore(file)
    assert all(torch.equal(a, b) for a, b in zip(live(restored, x, d, range(7, 20)), wanted, strict=True))
    assert all(getattr(online, c) == getattr(restored, c) for c in counts)
    assert repr(restored.optimizer) == repr(online.optimizer)


def test_loading_goes_back_in_time_too(tmp_path):
    x, d = randn(12, 2, 3), randn(12, 2, 2, seed=1)
    online = build()
    live(online, x, d, range(5))
    online.save(tmp_path / "a.safetensors")
    first = live(online, x, d, range(5, 12))
    online.load(tmp_path / "a.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(first, live(online, x, d, range(5, 12)), strict=True))


def test_a_learner_that_has_not_begun(tmp_path):
    online = build()
    online.save(tmp_path / "a.safetensors")
    other = build(seed=1)
    other.load(tmp_path / "a.safetensors")
    x, d = randn(3, 2, 3), randn(3, 2, 2, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(live(online, x, d, range(3)), live(other, x, d, range(3))))


def test_learning_rates_come_with_the_optimiser(tmp_path):
    online = build()
    for group in online.optimizer.param_groups:
        group["lr"] = 0.1234567890123
    online.save(tmp_path / "a.safetensors")
    other = build()
    other.load(tmp_path / "a.safetensors")
    assert other.optimizer.param_groups[0]["lr"] == 0.1234567890123


# ------------------------------------------------------------------------------------------------- what is refused
def rewritten(file, change):
    """The file with its JSON header changed."""
    data = file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


def described(change):
    """A change of the learner's own description in the header."""

    def apply(header):
        description = json.loads(header["__metadata__"]["longlag"])
        change(description)
        header["__metadata__"]["longlag"] = json.dumps(description)

    return apply


def drop_metadata(header):
    del header["__metadata__"]


def point_nowhere(description):
    description["content"]["dict"][1][1] = {"tensor": "content.nowhere"}


DAMAGES = {
    "truncated": (lambda f: f.write_bytes(f.read_bytes()[:-100]), "is truncated or not a safetensors file"),
    "half": (lambda f: f.write_bytes(f.read_bytes()[:50]), "is truncated or not a safetensors file"),
    "empty": (lambda f: f.write_bytes(b""), "is truncated or not a safetensors file"),
    "text": (lambda f: f.write_text("hello, this is not what you are looking for"), "is truncated or not a safe"),
    "foreign": (lambda f: rewritten(f, drop_metadata), "was not written by Online.save"),
    "version": (
        lambda f: rewritten(f, described(lambda d: d.update(version=2))),
        "is longlag.learn.Online version 2, this library reads longlag.learn.Online 1",
    ),
    "other format": (
        lambda f: rewritten(f, described(lambda d: d.update(format="something"))),
        "is something version 1, this library reads",
    ),
    "inconsistent": (
        lambda f: rewritten(f, described(point_nowhere)),
        "is damaged: its description does not fit its tensors",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_and_the_learner_unharmed(damage, tmp_path):
    x, d = randn(12, 2, 3), randn(12, 2, 2, seed=1)
    online, twin, file = build(), build(), tmp_path / "learner.safetensors"
    live(online, x, d, range(5))
    live(twin, x, d, range(5))
    build(seed=3).save(file)
    spoil, text = DAMAGES[damage]
    spoil(file)
    with pytest.raises(ValueError, match=re.escape(f"Online: learner.safetensors {text}")):
        online.load(file)
    assert all(torch.equal(a, b) for a, b in zip(live(online, x, d, range(5, 12)), live(twin, x, d, range(5, 12))))


OTHERS = {
    "another layer": (lambda: build("window"), "is from another layer: 'GRU"),
    "another rule": (
        lambda: learner(BPTT(), ll.LSTM(3, 4, 2, **DEFAULTS)),
        "is from another rule: 'BPTT()', here 'RTRL()'",
    ),
    "another size": (lambda: learner(RTRL(), ll.LSTM(3, 4, 1, **DEFAULTS)), "is from another layer: 'LSTM(3, 4)"),
    "another type": (lambda: learner(RTRL(), ll.LSTM(3, 4, 2)), "is from another layer: 'LSTM(3, 4, num_layers=2)"),
    "another optimiser": (lambda: build(optimizer="SGD"), "is from another optimizer: 'SGD', here 'Adam'"),
    "another read-out": (
        lambda: learner(RTRL(), ll.LSTM(3, 4, 2, **DEFAULTS), readout=False),
        "is from another readout: 'None",
    ),
}


@pytest.mark.parametrize("which", OTHERS)
def test_a_file_from_another_learner_is_refused_and_this_one_unharmed(which, tmp_path):
    x, d = randn(12, 2, 3), randn(12, 2, 2, seed=1)
    make, text = OTHERS[which]
    make().save(tmp_path / "other.safetensors")
    online, twin = build(), build()
    live(online, x, d, range(5))
    live(twin, x, d, range(5))
    with pytest.raises(ValueError, match=re.escape(f"Online: other.safetensors {text}")):
        online.load(tmp_path / "other.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(live(online, x, d, range(5, 12)), live(twin, x, d, range(5, 12))))


def test_a_failure_half_way_is_undone(tmp_path):
    """The optimiser refuses after the weights were taken over: all is put back."""
    x, d = randn(12, 2, 3), randn(12, 2, 2, seed=1)
    online, twin, bad = build(), build(), build(seed=4)
    live(online, x, d, range(5))
    live(twin, x, d, range(5))
    bad.optimizer.param_groups[0]["params"].append(nn.Parameter(torch.zeros(1)))  # one too many for ours
    bad.save(tmp_path / "bad.safetensors")
    with pytest.raises(ValueError, match="doesn't match the size of optimizer's group"):
        online.load(tmp_path / "bad.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(live(online, x, d, range(5, 12)), live(twin, x, d, range(5, 12))))


def test_what_cannot_be_saved_leaves_the_old_file(tmp_path):
    online, file = build(), tmp_path / "learner.safetensors"
    online.save(file)
    before = file.read_bytes()
    online.optimizer.param_groups[0]["note"] = object()
    with pytest.raises(TypeError, match="Online: cannot save <object object"):
        online.save(file)
    assert file.read_bytes() == before
    assert [f.name for f in tmp_path.iterdir()] == ["learner.safetensors"]
    with pytest.raises(FileNotFoundError):
        online.load(tmp_path / "nowhere.safetensors")


def test_nothing_in_the_file_is_pickled(tmp_path):
    build().save(tmp_path / "a.safetensors")
    data = (tmp_path / "a.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    described = {name: entry for name, entry in header.items() if name != "__metadata__"}
    assert described
    assert all(set(entry) == {"dtype", "shape", "data_offsets"} for entry in described.values())
    assert json.loads(header["__metadata__"]["longlag"])["format"] == "longlag.learn.Online"
