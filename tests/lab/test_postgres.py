"""A store on a PostgreSQL server: the records of a file; runs share it; nothing is lost or repeated by a kill."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from lab.test_run import FOUR, SOURCE
from lab.test_store import SIX, add, record
from typer.testing import CliRunner

from longlag.cli import app
from longlag.lab import run
from longlag.lab.run import described, reproduce
from longlag.lab.store import Store, StoreError

BIN = max(Path("/usr/lib/postgresql").glob("*/bin/initdb"), default=None)
pytestmark = pytest.mark.skipif(BIN is None, reason="needs PostgreSQL's initdb: the Debian package postgresql")
USER = "postgres" if os.getuid() == 0 else None  # the server refuses to run as root; Debian's package makes this user


@pytest.fixture(scope="module")
def server():
    """A server of the tests' own, which listens on a socket in its folder and nowhere else."""
    pytest.importorskip("psycopg", reason="needs psycopg: the extra postgres")
    assert BIN is not None
    programs = BIN.parent
    with tempfile.TemporaryDirectory() as folder:  # a socket's path must be short
        if USER:
            shutil.chown(folder, USER)
        data = f"{folder}/data"
        options = f"-k {folder} -c listen_addresses= -c fsync=off -c unix_socket_permissions=0777"

        def call(program, *words):
            command = [str(programs / program), *words]
            subprocess.run(command, user=USER, cwd=folder, check=True, stdout=subprocess.DEVNULL)

        call("initdb", "-D", data, "-U", "tester", "-A", "trust", "--no-sync", "--no-locale", "-E", "UTF8")
        call("pg_ctl", "-D", data, "-o", options, "-l", f"{folder}/log", "-w", "start")
        try:
            yield f"postgresql://tester@/{{}}?host={folder}"
        finally:
            call("pg_ctl", "-D", data, "-m", "immediate", "stop")


@pytest.fixture
def place(server, request):
    """The URL of an empty database."""
    import psycopg
    from psycopg import sql

    name = f"tests_{abs(hash(request.node.name))}"
    with psycopg.connect(server.format("postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return server.format(name)


def test_a_server_stores_what_a_file_stores(place, tmp_path):
    found = []
    for where in (place, tmp_path):
        with Store(where) as store:
            store.begin_run({"command": "a"})
            for seed in (3, 1, 2):
                add(store, SIX, seed)
            add(store, SIX, 2, 999)  # again: the first stays
        with Store(where, code="other") as store:
            assert store.seeds(SIX) == set()
            add(store, SIX, 1, 7)
            (noted,) = store.runs()
            assert noted.pop("ended") > "2026"
            found.append([store.records(SIX), store.codes(SIX), store.count(), store.foreign(), store.unnoted(), noted])
        with Store(where) as store:
            assert store.records(SIX) == [record(SIX, seed) for seed in (1, 2, 3)]
            assert (store.seconds(SIX), store.seconds(SIX, seed=3)) == (4.5, 1.5)
            assert (store.codes(SIX), store.aside) == ({store.code: 3, "other": 1}, None)
    assert found[0] == found[1]


def test_settings_may_be_long(place):
    """Longer than a key of the server, and not to be compressed."""
    settings = "".join(hashlib.sha256(bytes([k])).hexdigest() for k in range(200))
    row = ("6a", "text", settings, 1, "code", "{}", 1.0, "here", "2026", None)
    with Store(place) as store:
        for _ in range(2):
            statement = f"INSERT INTO trials VALUES ({', '.join('?' * len(row))}) ON CONFLICT DO NOTHING"
            store.database.write(statement, row)
        assert store.count() == 1


SHARER = """
import sys
from longlag.lab.run import reproduce
from lab.test_postgres import MANY

say = lambda progress: print(progress.record.seed, flush=True)
print("computed", reproduce([MANY], sys.argv[1], jobs=1, announce=say).computed)
"""
MANY = replace(FOUR, trials=12)


def sharer(place, folder):
    """A run as on another machine; prints the seeds of trials when they are stored."""
    (folder / "sharer.py").write_text(SHARER)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([SOURCE, str(Path(__file__).parents[1])])}
    words = [sys.executable, "sharer.py", place]
    return subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)


def test_runs_share_the_trials_and_take_up_those_of_runs_that_end_in_the_middle(place, tmp_path):
    with Store(place) as died:  # a machine that will fall silent in the middle of the last trial
        assert list(died.claimed([(MANY, 4011)]))
        runs = [sharer(place, tmp_path) for _ in range(2)]
        assert runs[0].stdout is not None
        assert [runs[0].stdout.readline() for _ in range(2)]
        runs[0].send_signal(signal.SIGKILL)
        until = time.monotonic() + 60
        while died.database.execute("SELECT count(*) FROM runs") != [(2,)] and time.monotonic() < until:
            time.sleep(0.05)
        assert runs[1].poll() is None, "it waits for the last trial"
    output = [one.communicate(timeout=60)[0] for one in runs][1]
    assert [one.returncode for one in runs] == [-signal.SIGKILL, 0]
    assert "4011" in output
    reproduce([MANY], tmp_path / "file", jobs=1)
    with Store(place) as store, Store(tmp_path / "file") as alone:
        rows = "SELECT experiment, reading, settings, seed, code, record FROM trials ORDER BY seed"
        assert store.database.execute(rows) == alone.database.execute(rows), "nothing is lost, and records are the same"
        counts = dict(store.database.execute("SELECT run, count(*) FROM trials GROUP BY run"))
    computed = int(output.split()[-1])
    assert 0 < computed <= MANY.trials - 2
    assert sorted(counts.values()) == sorted([MANY.trials - computed, computed]), "no trial was computed twice"


def test_a_trial_that_another_run_holds_is_waited_for(place, monkeypatch):
    monkeypatch.setattr(run, "WAIT", 0.01)
    one = replace(FOUR, trials=1)
    with Store(place) as other:
        assert list(other.claimed([(one, 4000)])) == [(one, 4000)]
        with Store(place) as store:
            assert list(store.claimed([(one, 4000), (one, 4001)])) == [(one, 4001)]
        seen = []
        waiting = threading.Thread(target=lambda: seen.append(reproduce([one], place, jobs=1)))
        waiting.start()
        time.sleep(0.3)
        assert not seen
        add(other, one, 4000)
        waiting.join(20)
        with Store(place) as store:
            assert list(store.claimed([(one, 4000)])) == [], "it is done"
    assert (seen[0].computed, seen[0].known) == (0, 1)


def test_the_command_line_and_the_report(place, tmp_path):
    words = ["-e", "6a", "--out", str(tmp_path / "pages"), "--store", place]
    done = CliRunner().invoke(app, ["reproduce", *words, "--trials", "1", "--jobs", "1"])
    assert done.exit_code == 0, done.output
    assert "1 trials computed, 0 known already" in done.output
    assert CliRunner().invoke(app, ["report", *words]).exit_code == 0
    assert sorted(path.suffix for path in (tmp_path / "pages").iterdir()) == [".csv", ".html", ".json", ".md"]


def test_what_cannot_be_used_is_named(place, server, monkeypatch):
    with pytest.raises(StoreError, match=r"Store: the PostgreSQL server cannot be reached .*nothing.* does not exist"):
        Store(server.format("nothing"))
    with Store(place) as store:
        store.database.write("UPDATE store_format SET format = 9")
    with pytest.raises(StoreError, match="must have format 2, got 9; use another database"):
        Store(place)
    with Store(server.format("postgres")) as store:
        store.database.write("DROP TABLE trials")
        with pytest.raises(
            StoreError, match=r"(?s)the database postgres cannot be used .*every trial announced is safe"
        ):
            add(store, SIX, 1)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ValueError, match=r"needs the extra 'postgres' \(pip install 'longlag\[postgres\]'\)"):
        Store(place)


def test_a_password_is_not_written_down():
    words = ["reproduce", "--store", "postgresql://me:secret@host/db", "--store=postgres://me:secret@host/db"]
    assert described("longlag", words) == "longlag reproduce --store 'postgresql://…' '--store=postgres://…'"
