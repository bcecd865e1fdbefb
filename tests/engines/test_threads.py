"""Threads: small work starts none, the caller's setting is restored, and nothing needs ``fork``."""

import os
import subprocess
import sys
import threading

import pytest
import torch

import longlag as ll
from longlag import engines, flow


@pytest.fixture(autouse=True)
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def test_small_work_runs_on_one_thread_and_large_work_does_not():
    with engines.few_threads(work=1000):
        assert torch.get_num_threads() == 1
        with engines.few_threads(work=1000):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with engines.few_threads(work=10**9):
        assert torch.get_num_threads() == 2


def test_the_setting_is_restored_after_an_error_and_kept_if_it_was_changed_inside():
    with pytest.raises(ZeroDivisionError), engines.few_threads(work=1):
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2
    with engines.few_threads(work=1):
        torch.set_num_threads(3)
    assert torch.get_num_threads() == 3


def test_the_setting_survives_threads_that_enter_and_leave_in_any_order():
    inside, leave = threading.Barrier(2), threading.Event()

    def other():
        torch.set_num_threads(2)
        with engines.few_threads(work=1):
            inside.wait()
            leave.wait()

    thread = threading.Thread(target=other)
    thread.start()
    with engines.few_threads(work=1):
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


@pytest.mark.parametrize("method", ["exact", "probe"])
def test_flow_computes_small_jacobians_on_one_thread(monkeypatch, method):
    seen, svdvals = [], torch.linalg.svdvals
    spy = lambda *given: seen.append(torch.get_num_threads()) or svdvals(*given)  # noqa: E731
    monkeypatch.setattr(torch.linalg, "svdvals", spy)
    flow.error_flow(ll.Elman(2, 6), torch.randn(5, 3, 2), method=method)
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2


def test_the_engine_loads_where_there_is_no_fork():
    """Windows: `os.register_at_fork` does not exist."""
    code = (
        "import os; del os.register_at_fork; import torch, longlag as ll;"
        "print(ll.LSTM(1, 2)(torch.zeros(1, 1, 1))[0].shape)"
    )
    run = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
