"""Threads: small work starts none, the caller's setting is restored, and nothing needs ``fork``."""

import importlib
import os
import threading

import pytest
import torch

from longlag import engines
from longlag.engines.cpu.runtime import threads


@pytest.fixture(autouse=True)
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def test_small_work_runs_on_one_thread_and_large_work_does_not():
    with engines.few_threads(width=16):
        assert torch.get_num_threads() == 1
        with engines.few_threads(width=16):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with engines.few_threads(width=1000):
        assert torch.get_num_threads() == 2


def test_the_setting_is_restored_after_an_error_and_kept_if_it_was_changed_inside():
    with pytest.raises(ZeroDivisionError), engines.few_threads(width=16):
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2
    with engines.few_threads(width=16):
        torch.set_num_threads(3)
    assert torch.get_num_threads() == 3


def test_the_setting_survives_threads_that_enter_and_leave_in_any_order():
    inside, leave = threading.Barrier(2), threading.Event()

    def other():
        torch.set_num_threads(2)
        with engines.few_threads(width=16):
            inside.wait()
            leave.wait()

    thread = threading.Thread(target=other)
    thread.start()
    with engines.few_threads(width=16):
        inside.wait()
    assert torch.get_num_threads() == 2
    leave.set()
    thread.join()
    assert torch.get_num_threads() == 2
    found = []
    later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert found == [2]  # a new thread has the setting, too


def test_the_engine_loads_where_there_is_no_fork(monkeypatch):
    """Windows: `os.register_at_fork` does not exist."""
    monkeypatch.delattr(os, "register_at_fork")
    importlib.reload(threads)
    monkeypatch.undo()
    importlib.reload(threads)  # as the other tests know it
