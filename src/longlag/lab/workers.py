"""Where trials run: processes of this machine (joblib), or a Dask or Ray cluster. Results come as they end."""

import os
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from itertools import islice
from typing import Any

from longlag.lab.experiment import Experiment
from longlag.lab.trials import Record, trial

Job = tuple[Experiment, int]
Done = tuple[Experiment, Record, float, str]
Stream = Callable[[Iterable[Job]], Iterable[Done]]  # takes a job when there is room for it


def work(job: Job) -> Done:
    """A trial, its processor time, and the machine it ran on."""
    begun = time.process_time()
    record = trial(*job)
    return job[0], record, time.process_time() - begun, platform.node()


def work_below(parent: int, job: Job) -> Done:
    """`work` in a process started by `parent`, which ends itself once the parent is gone."""
    end_with(parent)
    return work(job)


@cache
def end_with(parent: int) -> None:
    """Watch the parent process from a thread, once per process; end this process at once when the parent has died.

    A parent killed by SIGKILL cannot tell its workers. Kernels release Python's lock, so the thread runs beside them.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    if os.getpid() != parent:  # joblib runs the jobs of a nested call in the calling process itself
        threading.Thread(target=watch, daemon=True).start()


def loaded(module: str, extra: str) -> Any:
    """A module that only an extra brings."""
    try:
        return import_module(module)
    except ImportError as error:
        text = f"reproduce: backend {extra!r} needs the extra of that name (pip install 'longlag[{extra}]')"
        raise ValueError(f"{text}, got {error}") from error


@contextmanager
def local(jobs: int, address: str | None = None) -> Iterator[Stream]:
    """Processes of this machine; one job runs in this very process."""
    if jobs == 1:
        yield partial(map, work)
        return
    from joblib import Parallel, delayed

    def stream(todo: Iterable[Job]) -> Iterable[Done]:
        # batch_size 1: a finished trial never waits for another one; loky's workers are children of this process
        options: dict[str, Any] = {"backend": "loky", "return_as": "generator_unordered", "batch_size": 1}
        parallel: Any = Parallel(n_jobs=jobs, **options)
        return parallel(delayed(work_below)(os.getpid(), job) for job in todo)

    yield stream


@contextmanager
def dask(jobs: int, address: str | None) -> Iterator[Stream]:
    """A Dask cluster, by the address of its scheduler."""
    distributed = loaded("distributed", "dask")

    with distributed.Client(address) as client:

        def stream(todo: Iterable[Job]) -> Iterable[Done]:
            waiting, running = iter(todo), distributed.as_completed()
            while True:
                room = 2 * sum(client.nthreads().values()) - running.count()
                for job in islice(waiting, max(room, running.is_empty())):
                    running.add(client.submit(work, job, pure=False))
                if running.is_empty():
                    return
                yield next(running).result()

        yield stream


@contextmanager
def ray(jobs: int, address: str | None) -> Iterator[Stream]:
    """A Ray cluster, by the address of its head."""
    cluster = loaded("ray", "ray")
    cluster.init(address=address, ignore_reinit_error=True)
    remote = cluster.remote(work)

    def stream(todo: Iterable[Job]) -> Iterable[Done]:
        waiting, running = iter(todo), []
        while True:
            room = 2 * int(cluster.cluster_resources().get("CPU", 0)) - len(running)
            running += [remote.remote(job) for job in islice(waiting, max(room, not running))]
            if not running:
                return
            ready, running = cluster.wait(running)
            yield from cluster.get(ready)

    try:
        yield stream
    finally:
        cluster.shutdown()


BACKENDS = {"local": local, "dask": dask, "ray": ray}
