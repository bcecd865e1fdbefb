"""Small matrices on one thread: handing work to other threads costs more than it saves, a hundredfold on busy cores."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL = 512  # singular values and eigenvalues of matrices up to this width gain nothing from a second thread

_lock = threading.Lock()
_inside, _before = 0, 1  # how many blocks are running; torch's number of threads before the first of them


@contextmanager
def one_thread(width: int) -> Iterator[None]:
    """Run a block on one thread if its matrices are at most `SMALL` wide; then restore torch's number of threads."""
    global _inside, _before
    if width > SMALL:
        yield
        return
    own = torch.get_num_threads()  # a new thread takes over the common number now, not after it was set here
    with _lock:
        if _inside == 0:
            _before = own
        _inside += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            torch.set_num_threads(_before)  # a new thread would otherwise keep the 1 that it found
