"""Layers as modules: copies, dtypes, saved weights, functional calls, second derivatives, compilation."""

import copy
import io
import pickle

import pytest
import torch
from helpers import DEFAULTS, LAYERS, owner, parts, randn, same, some_state, weighted_sum, whole
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.func import functional_call

import longlag as ll

smooth = pytest.mark.parametrize("name", [name for name in LAYERS if name != "user_spikes"])  # a surrogate is no slope
every_layer = pytest.mark.parametrize("name", LAYERS)


@every_layer
def test_a_copy_is_equal_and_independent(name):
    layer, x = LAYERS[name](), randn(3, 2, 3)
    y, _ = layer(x)
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(x)[0], y)
    assert repr(twin) == repr(layer)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter += 1
    assert not torch.equal(twin(x)[0], y)
    assert torch.equal(layer(x)[0], y)


@every_layer
def test_weights_survive_being_saved(name):
    layer, other, x = LAYERS[name](), LAYERS[name](seed=1), randn(3, 2, 3)
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    for saved in (torch.load(buffer, weights_only=True), pickle.loads(pickle.dumps(layer.state_dict()))):
        other = LAYERS[name](seed=1)
        assert dict(layer.named_parameters()).keys() <= saved.keys()
        other.load_state_dict(saved)
        assert torch.equal(other(x)[0], layer(x)[0])


@every_layer
def test_the_seed_decides_the_weights(name):
    a, b, c = (list(LAYERS[name](seed=seed).parameters()) for seed in (0, 0, 1))
    assert all(map(torch.equal, a, b))
    assert not all(map(torch.equal, a, c))


@every_layer
def test_dtype_follows_to(name):
    layer, x = LAYERS[name](), randn(3, 2, 3)
    y, _ = layer(x)
    single, final = layer.to(torch.float32)(x.float())
    assert single.dtype == torch.float32
    assert all(part.dtype == torch.float32 for part in parts(final))
    assert (single - y).abs().max() < 1e-5
    again, final = layer.to(torch.float64)(x)
    assert again.dtype == torch.float64
    assert all(part.dtype == torch.float64 for part in parts(final))


@every_layer
def test_a_functional_call_uses_the_weights_it_is_given(name):
    layer, other, x = LAYERS[name](), LAYERS[name](seed=1), randn(3, 2, 3)
    before = {key: p.detach().clone() for key, p in layer.named_parameters()}
    y, _ = functional_call(layer, dict(other.named_parameters()), (x,))
    same(y, other(x)[0])
    assert all(torch.equal(p, before[key]) for key, p in layer.named_parameters())


@smooth
def test_first_and_second_derivatives(name):
    """gradcheck and gradgradcheck of a whole layer in x, state and every trainable parameter, ragged."""
    layer = LAYERS[name](2, 3 if "norm" in name else 2)
    x, state, lengths = randn(2, 2, 2), some_state(layer, 2), torch.tensor([2, 1])
    trained = {key: p for key, p in layer.named_parameters() if p.requires_grad}
    leaves = [t.detach().clone().requires_grad_() for t in (x, *state, *trained.values())]

    def run(x, *rest):
        given, values = rest[: len(state)], dict(zip(trained, rest[len(state) :]))
        y, final = functional_call(layer, values, (x, whole(given)), {"lengths": lengths})
        return y, *(part for part in parts(final) if part.requires_grad)

    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


@pytest.mark.parametrize("name", ["elman", "lstm", "gru", "skip_two_ways", "lstm97", "jordan_hidden", "local_network"])
def test_per_sequence_gradients_with_vmap(name):
    """torch.func composes: gradients of each sequence alone, in one call."""
    layer, x = LAYERS[name](), randn(3, 2, 3)
    weights = {key: p.detach() for key, p in layer.named_parameters()}

    def loss(weights, x):
        return (functional_call(layer, weights, (x,))[0] ** 2).sum()

    found = torch.func.vmap(torch.func.grad(loss), (None, 1))(weights, x)
    for b in range(2):
        alone = torch.func.grad(loss)(weights, x[:, b])
        same({key: value[b] for key, value in found.items()}, alone)


@every_layer
@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # torch's own, on first use
def test_forward_mode_derivatives_agree_with_backward_ones(name):
    """⟨v, J u⟩ = ⟨Jᵀ v, u⟩ for random u and v; the engine of a plain call gives the right-hand side."""
    layer, x, u = LAYERS[name](engine="auto"), randn(4, 2, 3), randn(4, 2, 3, seed=1)
    with forward_ad.dual_level():
        along = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, u))[0]).tangent
    assert along is not None
    y = layer(x.requires_grad_())[0]
    v = randn(*y.shape, seed=2)
    assert abs((v * along).sum() - (torch.autograd.grad(y, x, v)[0] * u).sum()) < 1e-10


@every_layer
def test_autocast_takes_inputs_and_states_of_low_precision(name):
    layer, x = LAYERS[name](engine="auto", dtype=torch.float32), randn(4, 2, 3, dtype=torch.float32)
    y, state = layer(x)
    low = whole([part.bfloat16() for part in parts(state)])
    wanted = layer(x, state)[0] if parts(state) else y
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(x.bfloat16(), low if parts(state) else None)[0]
    assert (found - wanted).abs().max() < 0.05 * (1 + wanted.abs().max())
    with pytest.raises(TypeError, match=r"input must be torch.float32 like the weights, got torch.bfloat16"):
        layer(x.bfloat16())


@every_layer
def test_fake_tensors_have_the_shapes_of_real_ones(name):
    layer, x = LAYERS[name](engine="auto"), randn(4, 2, 3)
    y, state = layer(x)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake, fake_state = layer(mode.from_tensor(x))
    for real, shadow in zip((y, *parts(state)), (fake, *parts(fake_state)), strict=True):
        assert isinstance(shadow, FakeTensor)
        assert shadow.shape == real.shape


@smooth
def test_a_gradient_step_reduces_the_loss(name):
    layer, x = LAYERS[name](), randn(4, 2, 3)
    optimizer = torch.optim.SGD([p for p in layer.parameters() if p.requires_grad], 1e-3)
    target = randn(*layer(x)[0].shape, seed=2)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = ((layer(x)[0] - target) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]


@every_layer
def test_an_empty_batch_has_an_empty_answer(name):
    layer = LAYERS[name]()
    y, final = layer(randn(3, 0, 3))
    full, full_final = layer(randn(3, 1, 3))
    assert y.shape == (3, 0, full.shape[-1])
    assert [part.numel() for part in parts(final)] == [0] * len(parts(full_final))


@every_layer
def test_lengths_on_another_device_are_not_read(name):
    """Reading them would wait for it. On the meta device it would fail."""
    layer, lengths = LAYERS[name](device="meta"), torch.tensor([3, 1], device="meta")
    reset = torch.zeros(3, 2, dtype=torch.bool, device="meta")
    y, final = layer(randn(3, 2, 3).to("meta"), lengths=lengths, reset=reset)
    here, here_final = LAYERS[name]()(randn(3, 2, 3))
    assert y.is_meta
    assert [t.shape for t in (y, *parts(final))] == [t.shape for t in (here, *parts(here_final))]


@every_layer
def test_the_representation_starts_with_the_name(name):
    layer = LAYERS[name]()
    assert repr(layer).split("(")[0].removeprefix("Parametrized") == owner(layer)


def test_compiled_equals_eager():
    layer = ll.LSTM(3, 4, num_layers=2, bidirectional=True, **DEFAULTS)
    x, lengths = randn(5, 3, 3).requires_grad_(), torch.tensor([5, 2, 3])
    state = tuple(part.requires_grad_() for part in some_state(layer, 3))
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    results = []
    for run in (layer, compiled):
        y, final = run(x, state, lengths=lengths)
        outputs = (y, *final)
        results.append([*outputs, *torch.autograd.grad(weighted_sum(*outputs), [x, *state, *layer.parameters()])])
    same(results[1], results[0])
