"""Trials on a cluster of two workers of this machine, of which one is killed in the middle: the same records, once."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from lab.test_run import FOUR, SOURCE

from longlag.lab.run import reproduce
from longlag.lab.store import Store

EIGHT = replace(FOUR, trials=8)
SCRIPTS = {
    "dask": """
def main():
    from dask.distributed import LocalCluster

    options = dict(n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1")
    with LocalCluster(**options) as cluster:
        run("dask", cluster.scheduler_address, lambda: [worker.pid for worker in cluster.workers.values()])
""",
    "ray": """
def busy():
    # of this cluster: its processes work in our folder
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (path / "cwd").readlink() == Path.cwd() and (path / "cmdline").read_bytes().startswith(b"ray::work"):
                yield int(path.name)


def main():
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        run("ray", cluster.address, busy)
    finally:
        cluster.shutdown()
""",
}
SCRIPT = """
import os, signal
from contextlib import suppress
from pathlib import Path
from lab.test_clusters import EIGHT
from longlag.lab.run import reproduce


def run(backend, address, workers):
    killed = []

    def announce(progress):
        for worker in [] if killed else [*workers()][:1]:
            os.kill(worker, signal.SIGKILL)
            killed.append(worker)

    outcome = reproduce([EIGHT], "store", backend=backend, address=address, announce=announce)
    assert len(killed) == 1
    assert outcome.computed == 8


{main}

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(("backend", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_a_cluster_gives_the_same_records_though_a_worker_is_killed(backend, package, tmp_path):
    pytest.importorskip(package, reason=f"needs {package}: the extra {backend}")
    if backend == "ray" and not Path("/proc/self/cmdline").exists():
        pytest.skip("finds Ray's workers in Linux's process table")
    (tmp_path / "cluster.py").write_text(SCRIPT.format(main=SCRIPTS[backend]))
    paths = os.pathsep.join([SOURCE, str(Path(__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": paths, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    subprocess.run([sys.executable, "cluster.py"], cwd=tmp_path, env=environment, check=True, timeout=180)
    reproduce([EIGHT], tmp_path / "here", jobs=1)
    with Store(tmp_path / "store") as store, Store(tmp_path / "here") as here:
        assert store.records(EIGHT) == here.records(EIGHT)
        assert (store.count(), store.seeds(EIGHT)) == (8, set(range(4000, 4008)))
