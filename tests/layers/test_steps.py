"""`layer.step` without gradients: the planned call of the kernels gives what `forward` gives, and never old weights."""

import copy
import pickle
import threading

import pytest
import torch
from helpers import LAYERS, batch_axis, parts, randn, same, some_state, whole
from torch import nn
from torch.nn.utils import parametrize, prune

import longlag as ll

CELLS = [name for name in LAYERS if isinstance(LAYERS[name](), ll.Recurrent) and not LAYERS[name]().bidirectional]


def planned(layer):
    """Whether the latest step took the planned call."""
    return layer._steps.latest is not None


def runs(layer, x, state):
    """One step through `forward`, in the layer's own words."""
    y, new = layer(x.unsqueeze(0), state)
    return y.squeeze(0), new


@pytest.mark.parametrize("engine", ["auto", "reference"])
@pytest.mark.parametrize("name", CELLS)
def test_a_planned_step_is_a_run_of_one_step(name, engine):
    layer = LAYERS[name](3, 5, engine=engine)
    x, state = randn(3, 2, 3), whole(some_state(layer, 2))
    one = whole(part.select(batch_axis(layer), 0) for part in parts(state))
    with torch.no_grad():
        for x_t in x:
            y, new = layer.step(x_t, state)
            y_run, new_run = runs(LAYERS[name](3, 5), x_t, state)
            same(y, y_run, "output")
            same(parts(new), parts(new_run), "state")
            alone, now = layer.step(x_t[0], one)
            same(alone, runs(LAYERS[name](3, 5), x_t[0], one)[0], "output of one sequence")
            state, one = new, now
    assert planned(layer) == (engine == "auto")


LEFT_TO_FORWARD = {
    "gru_original": lambda: ll.Recurrent(ll.cells.gru_original, 3, 5, dtype=torch.float64),
    "lem": lambda: ll.Recurrent(ll.cells.lem, 3, 5, dtype=torch.float64),
    "projected": lambda: ll.LSTM(3, 5, proj_size=2, dtype=torch.float64),
    "half": lambda: ll.GRU(3, 5, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("name", LEFT_TO_FORWARD)
def test_a_step_that_the_kernels_cannot_take_is_a_run(name):
    """U reads more than y, outputs are projected, numbers have another precision."""
    layer = LEFT_TO_FORWARD[name]()
    x, state = torch.randn(2, 3, dtype=layer.dtype), layer.initial_state(2)
    with torch.no_grad():
        for _ in range(2):
            (y, new), (y_run, new_run) = layer.step(x, state), runs(layer, x, state)
            assert torch.equal(y, y_run)
            assert all(map(torch.equal, parts(new), parts(new_run)))
            state = new
    assert layer._steps is None or not planned(layer)


def test_a_step_leaves_its_arguments_and_earlier_results_alone():
    layer, x, state = ll.LSTM(3, 5), torch.randn(4, 2, 3), (torch.randn(1, 2, 5), torch.randn(1, 2, 5))
    with torch.no_grad():
        before = [part.clone() for part in state]
        first = layer.step(x[0], state)
        kept = [first[0].clone(), *(part.clone() for part in first[1])]
        layer.step(x[1], first[1])
        y, (h, _) = layer.step(x[1], first[1])
        y += 1  # the output is not the state
    assert planned(layer)
    assert all(map(torch.equal, state, before))
    assert all(map(torch.equal, (first[0], *first[1]), kept))
    assert not torch.equal(y, h[0])


def test_gradients_flow_through_a_step():
    layer = ll.GRU(3, 5, dtype=torch.float64)
    x, state = torch.randn(2, 3, dtype=torch.float64), torch.randn(1, 2, 5, dtype=torch.float64)
    with torch.no_grad():
        layer.step(x, state)
    y, _ = layer.step(x, state)
    run, _ = runs(layer, x, state)
    weights = list(layer.parameters())
    for a, b in zip(torch.autograd.grad(y.sum(), weights), torch.autograd.grad(run.sum(), weights)):
        assert torch.equal(a, b)
    layer.requires_grad_(False)
    x.requires_grad_()
    assert layer.step(x, state)[0].requires_grad
    assert torch.func.jacrev(lambda x: layer.step(x, state)[0])(x).shape == (2, 5, 2, 3)
    batched = torch.func.vmap(lambda x: layer.step(x, state)[0])(torch.stack([x, 2 * x]))
    torch.testing.assert_close(batched[1], runs(layer, 2 * x, state)[0])


# ------------------------------------------------------------------------------------------------------ old weights
def in_place(layer):
    with torch.no_grad():
        layer.weight_hh_l0.mul_(2)


def through_data(layer):
    layer.weight_hh_l0.data.mul_(2)  # torch's version counter does not see this


def through_numpy(layer):
    layer.weight_hh_l0.detach().numpy()[:] *= 2


def other_data(layer):
    layer.weight_hh_l0.data = 2 * layer.weight_hh_l0.data


def transposed(layer):
    """The same memory and shape, other numbers."""
    layer.weight_hh_l0.data = layer.weight_hh_l0.data.t().contiguous().t()
    layer.weight_hh_l0.data = layer.weight_hh_l0.data.t()


def other_parameter(layer):
    layer.weight_hh_l0 = nn.Parameter(2 * layer.weight_hh_l0.detach())


def loaded(layer):
    layer.load_state_dict({name: 2 * value for name, value in layer.state_dict().items()})


def assigned(layer):
    layer.load_state_dict({name: 2 * value for name, value in layer.state_dict().items()}, assign=True)


def optimised(layer):
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.Adam(layer.parameters(), lr=0.1).step()


def trained(layer):
    layer(torch.randn(4, 2, 5))[0].sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.5).step()


def pruned(layer):
    prune.random_unstructured(layer, "weight_hh_l0", 0.5)


def parametrised(layer):
    parametrize.register_parametrization(layer, "weight_hh_l0", Doubled())


def negative(layer):
    layer.weight_hh_l0.data = torch._neg_view(layer.weight_hh_l0.data)  # pyright: ignore[reportPrivateImportUsage]


def strided(layer):
    layer.weight_hh_l0.data = torch.randn(5, 10)[:, ::2]


def reset(layer):
    layer.reset_parameters()


class Doubled(nn.Module):
    def forward(self, value):
        return 2 * value


CHANGES = [
    in_place, through_data, through_numpy, other_data, transposed, other_parameter, loaded, assigned, optimised,
    trained, pruned, parametrised, negative, strided, reset,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_weights_are_those_of_the_moment(change):
    layer, x, state = ll.Elman(5, 5), torch.randn(2, 5), torch.randn(1, 2, 5)
    with torch.no_grad():
        old = layer.step(x, state)[0]
        assert planned(layer)
    change(layer)
    with torch.no_grad():
        got = layer.step(x, state)[0]
        slow = ll.Elman(5, 5, engine="reference")
        for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
            setattr(slow, name, nn.Parameter(getattr(layer, name).detach().resolve_neg()))
        want = slow.step(x, state)[0]
    torch.testing.assert_close(got, want)
    assert not torch.allclose(got, old)


def test_functional_calls_bring_their_own_weights():
    layer, x, state = ll.LSTM(3, 5), torch.randn(2, 3), (torch.randn(1, 2, 5), torch.randn(1, 2, 5))

    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer.step(x, state)[0]

    steps, other = Steps(), ll.LSTM(3, 5)
    with torch.no_grad():
        old, want = steps(x), other.step(x, state)[0]
        got = torch.func.functional_call(steps, {f"layer.{n}": p for n, p in other.named_parameters()}, (x,))
        assert torch.equal(got, want)
        assert torch.equal(steps(x), old)


def test_weights_without_memory_are_refused():
    layer, x, state = ll.Elman(5, 64), torch.randn(2, 5), torch.randn(1, 2, 64)
    with torch.no_grad():
        layer.step(x, state)
        for size in (8, 0):
            layer.get_parameter("weight_hh_l0").untyped_storage().resize_(size)
            with pytest.raises(RuntimeError, match="has no memory, or too little"):
                layer.step(x, state)


def test_copies_have_steps_of_their_own():
    layer, x, state = ll.Elman(3, 5), torch.randn(2, 3), torch.randn(1, 2, 5)
    with torch.no_grad():
        old = layer.step(x, state)[0]
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert not planned(other)
            assert torch.equal(other.step(x, state)[0], old)
            in_place(other)
            assert not torch.equal(other.step(x, state)[0], old)
        assert torch.equal(layer.step(x, state)[0], old)
        double: ll.Elman = layer.double()
        assert double.step(x.double(), state.double())[0].dtype is torch.float64
        with pytest.raises(TypeError, match=r"must be torch\.float64"):
            double.step(x, state)


# --------------------------------------------------------------------------------------- what a call may bring along
def test_hooks_and_overridden_methods_are_called():
    x, state, seen = torch.randn(2, 3), torch.randn(1, 2, 5), []
    layer = ll.Elman(3, 5)

    class Loud(ll.Elman):
        def forward(self, *args, **options):
            seen.append("forward")
            return super().forward(*args, **options)

    loud = Loud(3, 5)
    with torch.no_grad():
        layer.step(x, state)
        layer.register_forward_hook(lambda *_: seen.append("hook"))
        layer.step(x, state)
        loud.step(x, state)
    assert seen == ["hook", "forward"]


def test_a_changed_setting_counts_at_the_next_step():
    layer, x, state = ll.Elman(3, 5, recurrent_dropout=0.5).eval(), torch.randn(2, 3), torch.randn(1, 2, 5)
    with torch.no_grad():
        layer.step(x, state)
        assert planned(layer)
        layer.train()
        with pytest.raises(ValueError, match=r"step needs recurrent_dropout=0 or eval\(\)"):
            layer.step(x, state)


@pytest.mark.parametrize(
    ("x", "state", "message"),
    [
        (torch.zeros(2, 4), torch.zeros(1, 2, 5), "input must have 3 features"),
        (torch.zeros(2, 3), torch.zeros(1, 3, 5), r"state y must have shape \(1, 2, 5\)"),
        (torch.zeros(1, 2, 3), torch.zeros(1, 2, 5), r"input of step must be \(B, I\) or \(I,\)"),
        (torch.zeros(2, 3).double(), torch.zeros(1, 2, 5), "input must be torch.float32"),
        (torch.zeros(2, 3), torch.zeros(1, 2, 5).double(), "state y must be torch.float32"),
        (torch.zeros(2, 3), (torch.zeros(1, 2, 5),) * 2, "state must be a tensor"),
        ([[0.0] * 3] * 2, torch.zeros(1, 2, 5), "input must be a tensor, got list"),
        (torch.zeros(2, 3), [[0.0]], "state"),
    ],
)
def test_wrong_arguments_are_named_as_before(x, state, message):
    layer = ll.Elman(3, 5)
    with torch.no_grad():
        layer.step(torch.zeros(2, 3), torch.zeros(1, 2, 5))
        with pytest.raises((ValueError, TypeError), match=message):
            layer.step(x, state)


def test_threads_step_beside_each_other():
    layer, x = ll.LSTM(8, 48), torch.randn(200, 1, 8)
    with torch.no_grad():
        want, state = [], (torch.zeros(1, 1, 48), torch.zeros(1, 1, 48))
        for x_t in x:
            y, state = layer.step(x_t, state)
            want.append(y)
    found: dict[int, list[torch.Tensor]] = {}

    def run(k):
        outputs, state = [], (torch.zeros(1, 1, 48), torch.zeros(1, 1, 48))
        with torch.no_grad():
            for x_t in x:
                y, state = layer.step(x_t, state)
                outputs.append(y)
        found[k] = outputs

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for outputs in found.values():
        assert all(map(torch.equal, outputs, want))
    assert len(found) == 4
