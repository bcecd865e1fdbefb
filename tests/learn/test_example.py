"""The stream demos do what their pictures show, at full length."""

import importlib.util
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stream_is_learned_and_learned_again_after_the_change(tmp_path):
    demo, steps = example("online_stream"), 12_000
    errors = demo.run(steps)
    before = {name: values[steps // 2 - 1] for name, values in errors.items()}
    after = {name: values[-1] for name, values in errors.items()}
    assert before["RTRL"] < 0.02
    assert after["RTRL"] < 0.02
    assert after["present step only: TruncatedRTRL"] > 0.1
    assert after["RTRL, stopped before the change"] > 0.4
    demo.plot(errors, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_digits_are_learned_the_change_is_noticed_and_a_restored_learner_goes_on(tmp_path):
    demo, digits = example("digits_stream"), 6_000
    found = demo.run(digits)
    share, half = demo.running(found.right), digits // 2
    assert (found.engine, found.identical) == ("cpu", True)
    assert share[half - 1] > 0.85
    assert share[half:].min() < 0.6
    assert share[-1] > 0.85
    assert min(alarm for alarm in found.alarms if alarm >= half) < half + 200
    demo.plot(found, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_the_share_of_right_answers_is_over_the_last_digits():
    demo = example("digits_stream")
    assert demo.running([1, 0, 1, 1], over=2).tolist() == pytest.approx([1, 0.5, 0.5, 1])
