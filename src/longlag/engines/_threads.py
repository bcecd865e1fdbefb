"""Small work on one thread: threads that share small operations cost more than they save."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

WORTH_A_THREAD = 1_000_000  # multiply-adds of one operation below which a second thread costs more than it saves
_lock = threading.Lock()
_active = 0  # blocks of `few_threads` that have set one thread, in all threads of the process
_setting = 1  # the number of threads before the first of them


@contextlib.contextmanager
def few_threads(work: int) -> Iterator[None]:
    """Run torch's operations on one thread if each takes at most ``work`` multiply-adds and that is little.

    On a busy machine a small operation waits for threads that are not scheduled, a thousand times longer than it
    computes. The caller's `torch.set_num_threads` is restored, also if several threads use this at the same time; a
    setting made inside the block stays.

    >>> torch.set_num_threads(2)
    >>> with few_threads(work=20**3):
    ...     torch.get_num_threads()
    1
    >>> torch.get_num_threads()
    2
    """
    global _active, _setting
    if work >= WORTH_A_THREAD or torch.get_num_threads() == 1:
        yield
        return
    with _lock:
        _setting = _setting if _active else torch.get_num_threads()
        _active += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _active -= 1
            if torch.get_num_threads() == 1:
                torch.set_num_threads(_setting)
