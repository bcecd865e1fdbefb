"""The stream demo does what its picture shows."""

import importlib.util
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "examples" / "online_stream.py"


def test_the_stream_is_learned_and_learned_again_after_the_change(tmp_path):
    spec = importlib.util.spec_from_file_location("online_stream", FILE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    steps = 2400
    errors = example.run(steps)
    before = {name: values[steps // 2 - 1] for name, values in errors.items()}
    after = {name: values[-1] for name, values in errors.items()}
    assert before["RTRL"] < 0.02
    assert after["RTRL"] < 0.05
    assert after["RTRL, stopped before the change"] > 0.4
    example.plot(errors, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
