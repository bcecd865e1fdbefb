"""Analyses of small layers run on one thread, and leave torch's number of threads and the layer as they were."""

import threading

import helpers
import pytest
import torch

import longlag as ll
from longlag import flow, tasks
from longlag.engines import few_threads
from longlag.engines._threads import SMALL


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)


def make(name, **options):
    return helpers.LAYERS[name](engine="reference", **options)


X = helpers.randn(9, 2, 3)
ANALYSES = {
    "error_flow": lambda: flow.error_flow(make("elman"), X),
    "probe": lambda: flow.error_flow(make("gru"), X, method="probe"),
    "spectrum": lambda: flow.spectrum(make("lstm97"), X),
    "credit": lambda: flow.credit(make("elman"), X, lambda y: y.square().sum(-1)),
    "forgetting": lambda: flow.forgetting(make("local_network_forget"), X),
    "carousel": lambda: flow.carousel(make("lstm97"), X),
    "memory": lambda: flow.memory_weights(make("lstm"), X),
    "conditions": lambda: flow.conditions(make("elman")),
    "paths": lambda: flow.path_products(make("elman", size=3), X, 2),
    "drift": lambda: flow.drift(ll.LSTM97(2, 1, output_size=1), tasks.Multiplication(22), updates=1, batch=2),
}


class Threads(torch.overrides.TorchFunctionMode):
    """Collects the number of threads at every matrix operation."""

    HEAVY = ("matmul", "linear", "svdvals", "eigvals", "qr", "matrix_norm", "bmm")

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if any(word in getattr(func, "__name__", "") for word in self.HEAVY):
            self.seen.add(torch.get_num_threads())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ANALYSES)
def test_small_work_runs_on_one_thread(name):
    with Threads() as threads:
        ANALYSES[name]()
    assert threads.seen == {1}


def test_watching_small_layers_takes_one_thread():
    layer = make("lstm")
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    with flow.watch(layer, every=1, budget=1.0):
        layer(X)[0][-1].sum().backward()
        with Threads() as threads:
            optimizer.step()
    assert threads.seen == {1}


def test_large_work_keeps_the_threads():
    with few_threads(SMALL + 1):
        assert torch.get_num_threads() == 3


def test_threads_are_restored_after_an_error():
    with pytest.raises(ValueError, match="must be finite"):
        flow.error_flow(make("elman"), X * torch.nan)
    with pytest.raises(RuntimeError), few_threads(4):
        raise RuntimeError
    assert torch.get_num_threads() == 3


def test_analyses_in_several_threads_leave_every_thread_as_it_was():
    """Blocks overlap: the second begins inside the first and ends after it."""
    inside, first_done, counts = threading.Event(), threading.Event(), {}

    def second():
        with few_threads(4):
            inside.set()
            first_done.wait(10)
            counts["inside"] = torch.get_num_threads()
        counts["after"] = torch.get_num_threads()

    thread = threading.Thread(target=second)
    with few_threads(4):
        thread.start()
        assert inside.wait(10)
    first_done.set()
    thread.join()
    assert counts == {"inside": 1, "after": 3}


@pytest.mark.parametrize("name", ["lstm97", "jordan", "skip_several", "local_network"])
def test_the_layer_is_not_changed_while_it_is_analysed(name):
    """Another thread may be training it."""
    layer = helpers.LAYERS[name]()
    settings = {module: (module.training, getattr(module, "engine", None)) for module in layer.modules()}
    assert all(training for training, _ in settings.values())
    seen = []

    class Check(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append({m: (m.training, getattr(m, "engine", None)) for m in layer.modules()} == settings)
            return func(*args, **(kwargs or {}))

    with Check():
        flow.error_flow(layer, X)
    assert seen
    assert all(seen)
