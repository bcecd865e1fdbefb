"""Running: the same records however they are computed, nothing twice, nothing lost when killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from longlag.lab import __main__ as command
from longlag.lab import hs97
from longlag.lab.criteria import Goal, WindowCriterion
from longlag.lab.run import reproduce, wanted_jobs
from longlag.lab.store import Store
from longlag.lab.trials import trial
from longlag.lab.workers import end_with

FOUR = replace(hs97.experiment_4(100, "fit"), stop=WindowCriterion(0.3, (Goal("", 18),), 100, 32), cap=500, trials=3)
LONG = replace(FOUR, name="long", cap=800, trials=2)
SOURCE = str(Path(hs97.__file__).parents[2])


def records(folder, *experiments):
    with Store(folder) as store:
        return [store.records(e) for e in experiments]


def test_trials_are_computed_once_and_announced_after_the_commit(tmp_path):
    announced = []

    def announce(progress):
        with Store(tmp_path) as other:  # another connection sees what is announced
            assert progress.record in other.records(progress.experiment)
        announced.append((progress.experiment.name, progress.record.seed, progress.done, progress.wanted))

    outcome = reproduce([FOUR, LONG], tmp_path, jobs=1, announce=announce)
    assert (outcome.computed, outcome.known) == (5, 0)
    assert announced == [
        ("long", 4000, 1, 2),
        ("4 T=100", 4000, 1, 3),
        ("long", 4001, 2, 2),
        ("4 T=100", 4001, 2, 3),
        ("4 T=100", 4002, 3, 3),
    ]
    assert records(tmp_path, FOUR) == [[trial(FOUR, seed) for seed in (4000, 4001, 4002)]]
    again = reproduce([FOUR, LONG], tmp_path, jobs=1, announce=lambda progress: pytest.fail(f"run again: {progress}"))
    assert (again.computed, again.known) == (0, 5)
    more = reproduce([FOUR], tmp_path, jobs=1, trials=4)
    assert (more.computed, more.known) == (1, 3)
    with Store(tmp_path) as store:
        assert [run["trials"] for run in store.runs()] == [5, 1]


def test_a_store_moved_aside_is_reported(tmp_path):
    (tmp_path / "results.sqlite").write_bytes(b"no store" * 1000)
    said = []
    reproduce([LONG], tmp_path, jobs=1, say=said.append)
    assert said == ["results.sqlite could not be used; it is kept as results.sqlite.damaged-1."]
    assert (tmp_path / "results.sqlite.damaged-1").read_bytes() == b"no store" * 1000


def test_an_interrupted_run_is_noted_with_what_it_did(tmp_path):
    def announce(progress):
        if progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce([FOUR], tmp_path, jobs=1, announce=announce, command="once")
    with Store(tmp_path) as store:
        assert [(run["command"], run["trials"]) for run in store.runs()] == [("once", 2)]
        assert store.seeds(FOUR) == {4000, 4001}


def test_one_of_each_then_the_longest_first():
    jobs = [(e.name, seed) for e, seed in wanted_jobs([FOUR, LONG], None, 7)]
    assert jobs == [("long", 7), ("4 T=100", 7), ("long", 8), ("4 T=100", 8), ("4 T=100", 9)]


def test_records_do_not_depend_on_the_number_of_processes(tmp_path):
    reproduce([FOUR], tmp_path / "one", jobs=1)
    reproduce([FOUR], tmp_path / "two", jobs=2)
    one, two = (records(tmp_path / name, FOUR) for name in ("one", "two"))
    assert one == two
    assert len(one[0]) == 3


KILLER = """
import os, random, signal, sys, time
from longlag.lab.run import reproduce
from longlag.lab.store import Store
from test_run import FOUR
from dataclasses import replace

folder, experiment, chance = sys.argv[1], replace(FOUR, trials=100), random.Random(5)


def seconds(trials):
    begun = time.perf_counter()
    reproduce([experiment], folder + "-clock", jobs=1, trials=trials)
    return time.perf_counter() - begun


seconds(1)  # compiled before the clock starts
usual, start = seconds(11) / 10, seconds(11)  # ten new trials; none
kills, counts = 0, []
for _ in range(20):
    child = os.fork()
    if child == 0:
        reproduce([experiment], folder, jobs=1)
        os._exit(0)
    time.sleep(chance.uniform(0, start + 4 * usual))
    os.kill(child, signal.SIGKILL)
    kills += os.waitpid(child, 0)[1] == signal.SIGKILL
    with Store(folder) as store:
        assert store.aside is None
        counts.append(store.count())
reproduce([experiment], folder, jobs=1)
with Store(folder) as store:
    assert sum(run["trials"] for run in store.runs()) == 100, "killed runs count with what they had finished"
print(kills, *counts)
"""


def test_killed_at_twenty_moments_it_goes_on_where_it_was(tmp_path):
    (tmp_path / "killer.py").write_text(KILLER)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([SOURCE, str(Path(__file__).parent)])}
    done = subprocess.run(
        [sys.executable, "killer.py", str(tmp_path / "store")],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    kills, *counts = map(int, done.stdout.split())
    assert kills == 20, "every run was killed before its end"
    assert counts == sorted(counts)
    assert 0 < counts[-1] < 100, "the kills fell among the trials"
    experiment = replace(FOUR, trials=100)
    reproduce([experiment], tmp_path / "whole", jobs=1)
    with Store(tmp_path / "store") as store, Store(tmp_path / "whole") as whole:
        assert store.count() == 100
        assert store.seeds(experiment) == set(range(4000, 4100))
        rows = "SELECT experiment, reading, settings, seed, code, record FROM trials ORDER BY seed"
        assert store.database.execute(rows) == whole.database.execute(rows)


def test_ctrl_c_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "reproduce", interrupt)
    assert command.main(["--experiment", "6a", "--out", str(tmp_path)]) == 130
    assert (
        "stopped; finished trials are kept. To go on: python -m longlag.lab --experiment 6a" in capsys.readouterr().err
    )


def test_a_real_sigint_keeps_what_is_done(tmp_path):
    words = [sys.executable, "-m", "longlag.lab", "--experiment", "3a/fit", "--trials", "1000", "--jobs", "1"]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731  (shells make background jobs deaf to it)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*words, "--out", str(tmp_path)], env=environment, preexec_fn=heard, **pipes) as run:
        try:
            assert run.stdout is not None
            first = run.stdout.readline()
            run.send_signal(signal.SIGINT)
            _, errors = run.communicate(timeout=60)
        finally:
            run.kill()
    assert run.returncode == 130
    assert "3a T=100 N=3/fit seed 4000: " in first
    assert "To go on: python -m longlag.lab" in errors
    assert "Traceback" not in errors
    with Store(tmp_path) as store:
        assert store.count() >= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": 0}, "reproduce: trials must be an int of at least 1, got 0"),
        ({"trials": -3}, "reproduce: trials must be an int of at least 1, got -3"),
        ({"jobs": 0}, "reproduce: jobs must be an int of at least 1, got 0"),
        ({"seed": -1}, "reproduce: seed must be an int of at least 0, got -1"),
        ({"backend": "slurm"}, r"reproduce: backend must be one of \('local', 'dask', 'ray'\), got 'slurm'"),
    ],
)
def test_bad_requests_touch_nothing(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        reproduce([FOUR], tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("backend", "module"), [("dask", "distributed"), ("ray", "ray")])
def test_a_backend_that_is_not_installed(tmp_path, monkeypatch, backend, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=rf"backend '{backend}' needs the extra .*pip install 'longlag\[{backend}\]'"):
        reproduce([FOUR], tmp_path, backend=backend, address="here")
    with Store(tmp_path) as store:
        assert store.runs() == []


def test_the_small_command_line(tmp_path, capsys, monkeypatch):
    assert command.main(["--experiment", "9", "--out", str(tmp_path)]) == 2
    assert "got '9'; did you mean" in capsys.readouterr().err
    assert command.main(["--trials", "0", "--out", str(tmp_path)]) == 2
    monkeypatch.setattr(command, "select", lambda profile, wanted: (FOUR,))
    assert command.main(["--jobs", "1", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "4 T=100/fit seed 4000: " in out
    assert "3 trials computed, 0 known" in out
    with Store(tmp_path) as store:
        (run,) = store.runs()
    assert run["command"] == f"python -m longlag.lab --jobs 1 --out {tmp_path.name}"
    assert json.dumps(run)


def children(pid):
    """Process ids of the children of a process (Linux)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[1] == str(pid):
            found.append(int(stat.parent.name))
    return found


def alive(pid):
    """Is a process running? A zombie that nobody has collected is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads Linux's process table")
def test_workers_end_when_the_parent_is_killed(tmp_path):
    """A7: after a SIGKILL of `reproduce` its worker processes notice within seconds, even in the middle of a trial."""
    words = [
        sys.executable,
        "-m",
        "longlag.lab",
        "--profile",
        "paper",
        "--experiment",
        "4 T=1000/fit",
        "--experiment",
        "6a",
    ]
    words += ["--trials", "4", "--jobs", "2", "--out", str(tmp_path)]
    with subprocess.Popen(words, env={**os.environ, "PYTHONPATH": SOURCE}, stdout=subprocess.PIPE, text=True) as run:
        workers = []
        try:
            assert run.stdout is not None
            assert "6a/text seed" in run.stdout.readline()  # a trial of minutes and one of a fraction of a second
            workers = children(run.pid)
            assert len(workers) >= 2
            run.send_signal(signal.SIGKILL)
            run.wait()
            until = time.monotonic() + 10
            while any(map(alive, workers)) and time.monotonic() < until:
                time.sleep(0.1)
            assert not [pid for pid in workers if alive(pid)]
        finally:
            run.kill()
            for pid in filter(alive, workers):
                os.kill(pid, signal.SIGKILL)


def test_a_job_in_the_calling_process_watches_nobody():
    before = threading.active_count()
    end_with(os.getpid())
    assert threading.active_count() == before
