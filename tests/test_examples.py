"""The examples with other people's libraries run, on little data, and do what they say."""

import os
import subprocess
import sys

import pytest
import torch
from test_docs import ROOT, example

import longlag as ll


def test_ppo_in_one_file():
    """What is learned from in one call is what was done step by step, episodes that end in between included."""
    ppo = example("ppo_recurrent")
    assert len((ROOT / "examples" / "ppo_recurrent.py").read_text(encoding="utf-8").splitlines()) < 250
    training = ppo.Training(ppo.Settings(units=16, layer="GRU", steps=64, total=1024, environments=4, epochs=2))
    drifts = []
    for _ in range(2):
        rollout = training.roll()
        before = training.agent.critic.weight.clone()
        training.update(rollout)
        drifts.append(training.drift)
        assert not torch.equal(training.agent.critic.weight, before)
        assert rollout.starts[1:].any(), "episodes end"
    assert max(drifts) < 1e-5
    assert len(training.run()) == 4


def test_advantages_end_with_their_episode():
    ppo = example("ppo_recurrent")
    training = ppo.Training(ppo.Settings(units=4, steps=48, environments=2))
    rollout, s = training.roll(), training.s
    end = int(rollout.starts[1:, 0].nonzero()[0])  # the last step of the first episode
    surprise = rollout.rewards[end, 0] - rollout.values[end, 0]
    torch.testing.assert_close(rollout.advantages[end, 0], surprise)
    surprise = rollout.rewards[end - 1, 0] + s.gamma * rollout.values[end, 0] - rollout.values[end - 1, 0]
    wanted = surprise + s.gamma * s.smoothing * rollout.advantages[end, 0]
    torch.testing.assert_close(rollout.advantages[end - 1, 0], wanted)


@pytest.mark.filterwarnings("ignore")  # Lightning, about the number of workers
def test_a_checkpoint_of_lightning_contains_the_carried_state():
    pytest.importorskip("pytorch_lightning", reason="needs pytorch-lightning")
    loss, same = example("with_lightning").identical(2)
    assert same
    assert loss < 0.1


def test_a_folder_of_the_hub(tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("went online"))
    model, loaded = example("with_hub").saved_and_loaded(tmp_path)
    assert isinstance(loaded.layer, ll.GRU)
    assert all(map(torch.equal, model.state_dict().values(), loaded.state_dict().values()))
    assert {"config.json", "model.safetensors"} <= {path.name for path in tmp_path.iterdir()}


def test_processes_of_torchrun_with_workers():
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["with_processes.py", "--workers", "1", "--count", "512", "--epochs", "2"]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    folder = ROOT / "examples"
    done = subprocess.run([*run, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    share = float(done.stdout.partition("2 processes: ")[2].partition("%")[0])
    assert share > 80
    assert "weights differ by 0e+00" in done.stdout
