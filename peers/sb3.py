"""sb3-contrib's own tests of recurrent policies, with our policies in the place of theirs.

    python peers/sb3.py [options of pytest]

The tests stand in sb3-contrib's source distribution only, which is downloaded in the version that is installed. Of its
tests those are run that train ``RecurrentPPO``; they are not changed. One of them trains an LSTM of 64 units on
velocity-masked CartPole for 50,000 steps and wants a mean return of 450.
"""

import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

import pytest
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.policies import BasePolicy

import longlag as ll

OURS: dict[str, type[BasePolicy]] = {
    "MlpLstmPolicy": ll.rl.RecurrentPolicy,
    "CnnLstmPolicy": ll.rl.RecurrentCnnPolicy,
    "MultiInputLstmPolicy": ll.rl.RecurrentMultiInputPolicy,
}


def main() -> int:
    assert RecurrentPPO.policy_aliases.keys() == OURS.keys()
    RecurrentPPO.policy_aliases = OURS
    with tempfile.TemporaryDirectory() as folder:
        get = ["download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--dest", folder]
        wanted = f"sb3-contrib=={version('sb3-contrib')}"
        subprocess.run([sys.executable, "-m", "pip", *get, wanted], check=True)
        with tarfile.open(next(Path(folder).glob("*.tar.gz"))) as archive:
            archive.extractall(folder, filter="data")
        tests = next(Path(folder).glob("*/tests"))
        chosen = ["-k", "test_lstm or RecurrentPPO", "--import-mode=importlib", "-p", "no:cacheprovider"]
        return pytest.main([str(tests), "-c", str(tests.parent / "setup.cfg"), "-q", "-ra", *chosen, *sys.argv[1:]])


if __name__ == "__main__":
    raise SystemExit(main())
