"""Small work on one thread: threads that share small operations cost more than they save."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

SMALL = 512  # operations on matrices up to this width gain little or nothing from a second thread
_lock, _local = threading.Lock(), threading.local()
_active = 0  # blocks of `few_threads` that limit threads now, in all threads of the process
_setting = 1  # the number of threads before the first of those blocks


@contextlib.contextmanager
def few_threads(width: int) -> Iterator[None]:
    """Run torch's operations on one thread while they work on small matrices, at most ``width`` wide.

    On a busy machine a small operation waits for a thread that is not scheduled, a hundred times longer than it
    computes. The number of threads is restored, also if several threads use this at the same time; a number set inside
    the block stays.

    >>> torch.set_num_threads(2)
    >>> with few_threads(width=20):
    ...     torch.get_num_threads()
    1
    >>> torch.get_num_threads()
    2
    """
    global _active, _setting
    before = torch.get_num_threads()
    nested = getattr(_local, "inside", False)
    if width > SMALL or nested or (before == 1 and not _active):  # a thread may find the 1 that another has set
        yield
        return
    _local.inside = True
    with _lock:
        _setting = _setting if _active else before
        _active += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        _local.inside = False
        with _lock:
            _active -= 1
            if torch.get_num_threads() == 1:
                torch.set_num_threads(_setting)
