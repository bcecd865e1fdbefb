"""What existing code written for torch.nn calls: keywords, tracing, deferred initialisation, error types."""

import inspect
from typing import Any

import pytest
import torch
from helpers import same
from torch import nn

import longlag as ll

PAIRS = [(ll.LSTM, nn.LSTM), (ll.GRU, nn.GRU), (ll.Elman, nn.RNN)]


class Model(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(4, 2)

    def forward(self, x, start):
        y, state = self.layer(x, start)
        return self.head(y), state


@pytest.mark.parametrize("kind", [ll.GRU, ll.LocalFeedback, ll.Skip], ids=lambda kind: kind.__name__)
def test_symbolic_tracing_keeps_the_layer_as_one_node(kind):  # D21
    model = Model(kind(3, 4))
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["layer", "head"]
    x = torch.randn(5, 2, 3)
    _, start = model.layer(x)
    same(traced(x, start), model(x, start), "traced")


@pytest.mark.parametrize("kind", [ll.LSTM, ll.GRU, ll.Elman, ll.Leaky, ll.LocalFeedback, ll.Skip, ll.EchoState])
def test_skip_init(kind):  # D21
    sizes = (3, 4, 2) if kind is ll.EchoState else (3, 4)
    layer = nn.utils.skip_init(kind, *sizes)
    assert {p.device.type for p in layer.parameters()} == {"cpu"}
    assert [p.shape for p in layer.parameters()] == [p.shape for p in kind(*sizes).parameters()]


def test_the_signature_names_every_option():
    assert {"norm", "recurrent_dropout", "engine", "device", "dtype"} <= inspect.signature(ll.LSTM).parameters.keys()
    for kind in (ll.LSTM, ll.Leaky, ll.Skip):
        for name, parameter in inspect.signature(kind).parameters.items():
            assert parameter.kind is not parameter.VAR_KEYWORD, name
    defaults = {name: p.default for name, p in inspect.signature(ll.GRU).parameters.items()}
    layer = ll.GRU(3, 4)
    assert all(getattr(layer, name) == defaults[name] for name in ("norm", "recurrent_dropout", "engine"))


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda kind: kind.__name__)
def test_all_weights_and_flatten_parameters(ours, theirs):  # D21
    a, b = (kind(3, 4, 2, bidirectional=True) for kind in (ours, theirs))
    a.load_state_dict(b.state_dict())
    same(tuple(map(tuple, a.all_weights)), tuple(map(tuple, b.all_weights)), "all_weights")
    assert a.flatten_parameters() is None


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda kind: kind.__name__)
def test_keywords_of_torch(ours, theirs):  # D21
    a, b = ours(3, 4), theirs(3, 4)
    a.load_state_dict(b.state_dict())
    x = torch.randn(5, 2, 3)
    _, state = b(x)
    same(a(input=x, hx=state)[0], b(input=x, hx=state)[0], "input=, hx=", 1e-5)
    with pytest.raises(TypeError):
        a(x, state=state, hx=state, input=x)


def test_shape_errors_are_those_torch_code_catches():  # D23
    layer, x = ll.LSTM(3, 4), torch.randn(5, 2, 3)
    wrong = [
        lambda: layer(torch.randn(5, 2, 4)),
        lambda: layer(torch.randn(5, 2, 3, 1)),
        lambda: layer(x, (torch.zeros(1, 3, 4), torch.zeros(1, 3, 4))),
        lambda: layer(x, lengths=torch.tensor([1, 2, 3])),
        lambda: layer(x, reset=torch.zeros(2, 5, dtype=torch.bool)),
        lambda: layer.step(x),
        lambda: layer.load_state_dict(ll.LSTM(3, 5).state_dict()),
    ]
    for call in wrong:
        for kind in (RuntimeError, ValueError):
            with pytest.raises(kind, match="LSTM: "):
                call()


def test_small_reservoirs_are_not_refused_by_chance():  # D22
    x = torch.randn(20, 1, 1)
    for units in (2, 4, 8):
        for seed in range(50):
            net = ll.EchoState(1, units, 1, seed=seed)
            assert float(torch.linalg.eigvals(net.reservoir.weight_hh_l0).abs().max()) == pytest.approx(0.9, rel=1e-4)
            assert bool(torch.isfinite(net(x)[0]).all())


def test_an_echo_state_network_goes_on_where_the_training_ended():  # D22
    x = torch.sin(torch.arange(301.0) / 5).view(-1, 1, 1).double()
    net = ll.EchoState(1, 40, 1, warmup=20, dtype=torch.float64).fit(x[:200], x[1:201])
    whole, _ = net(x[:300])
    same(net.predict(x[200:300], net.last_state), whole[200:], "continued", 1e-9)


def test_an_echo_state_network_as_an_estimator():  # D22
    net = ll.EchoState(1, 12, 1, leak=0.5, seed=7)
    params = net.get_params()
    assert (params["hidden_size"], params["leak"], params["seed"]) == (12, 0.5, 7)
    twin = net.clone()
    same(twin.reservoir.state_dict(), net.reservoir.state_dict(), "reservoir", 0.0)
    assert net.set_params(leak=0.25).leak == 0.25
    assert twin.leak == 0.5
    with pytest.raises(ValueError, match="EchoState: 'units' is not one of input_size, hidden_size"):
        net.set_params(units=3)


# ----------------------------------------------------------------------------------------------- packed sequences
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("enforce_sorted", [True, False])
@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda kind: kind.__name__)
def test_packed_sequences(ours, theirs, enforce_sorted, batch_first):
    a, b = (kind(3, 4, 2, bidirectional=True, batch_first=batch_first) for kind in (ours, theirs))
    a.load_state_dict(b.state_dict())
    lengths = torch.tensor([6, 4, 4, 1] if enforce_sorted else [4, 1, 6, 4])
    x = torch.randn(4, 6, 3) if batch_first else torch.randn(6, 4, 3)
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first, enforce_sorted)
    _, start = b(packed)
    (y, new), (wanted, new_wanted) = a(packed, start), b(packed, hx=start)
    same(y.data, wanted.data, "data", 1e-5)
    assert torch.equal(y.batch_sizes, wanted.batch_sizes)
    for name in ("sorted_indices", "unsorted_indices"):
        one, other = getattr(y, name), getattr(wanted, name)
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, torch.as_tensor(other))
    same(new, new_wanted, "state", 1e-5)


def test_a_packed_sequence_for_a_layer_of_another_kind():
    layer = ll.Jordan(3, 4, 2)
    x, lengths = torch.randn(6, 3, 3), torch.tensor([2, 6, 5])
    y: Any
    y, fb = layer(nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False))
    wanted, wanted_fb = layer(x, lengths=lengths)
    same(nn.utils.rnn.pad_packed_sequence(y)[0], wanted, "output", 1e-6)
    same(fb, wanted_fb, "state", 1e-6)
    with pytest.raises(ValueError, match="Jordan: lengths must be None for a PackedSequence"):
        layer(nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False), lengths=lengths)


# ----------------------------------------------------------------------------------------------------- as a cell
@pytest.mark.parametrize(
    ("kind", "theirs"), [(ll.LSTM, nn.LSTMCell), (ll.GRU, nn.GRUCell), (ll.Elman, nn.RNNCell)], ids=lambda k: k.__name__
)
def test_a_layer_as_a_cell(kind, theirs):
    layer, cell = kind(3, 4), theirs(3, 4)
    ours = layer.as_cell()
    ours.load_state_dict(cell.state_dict())
    state = wanted = None
    for x in torch.randn(5, 2, 3):
        state, wanted = ours(x, state), cell(x, wanted)
        same(state, wanted, "state", 1e-5)
    same(ours(torch.ones(3)), cell(torch.ones(3)), "one sequence", 1e-5)
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    state = ours(torch.ones(2, 3))
    (state[0] if isinstance(state, tuple) else state).sum().backward()
    before = layer.weight_ih_l0.detach().clone()
    optimizer.step()
    assert not torch.equal(before, layer.weight_ih_l0)  # the layer's own weights are trained


@pytest.mark.parametrize(
    ("layer", "complaint"),
    [
        (lambda: ll.LSTM(3, 4, 2), r"LSTM.as_cell: needs num_layers=1 and bidirectional=False"),
        (lambda: ll.LocalFeedback(3, 4, constrain=None), r"the output of cell net_feedback is not in its state"),
        (lambda: ll.Leaky(3, 4, learn_alpha=True), r"Leaky.as_cell: Leaky has parametrised weights"),
    ],
)
def test_a_layer_that_is_no_cell(layer, complaint):
    with pytest.raises(ValueError, match=complaint):
        layer().as_cell()


# ------------------------------------------------------------------------------------ half precision, quantisation
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "make",
    [
        lambda **o: ll.LSTM(3, 5, 2, bidirectional=True, norm="layer", **o),
        lambda **o: ll.GRU(3, 5, **o),
        lambda **o: ll.LSTM97(3, 2, 2, output_size=1, **o),
        lambda **o: ll.Jordan(3, 4, 2, **o),
    ],
    ids=["lstm", "gru", "lstm97", "jordan"],
)
def test_half_precision_on_the_cpu_is_computed_in_float32(make, dtype):
    half, single = make(dtype=dtype), make(engine="reference")
    single.load_state_dict(half.state_dict())
    x, lengths = torch.randn(7, 3, 3).to(dtype), torch.tensor([7, 2, 5])
    assert half.engine_for(x) == "cpu: compiled kernels, which compute half precision in float32"
    (y, state), (wanted, wanted_state) = half(x, lengths=lengths), single(x.float(), lengths=lengths)
    parts, wanted_parts = ((s,) if isinstance(s, torch.Tensor) else s for s in (state, wanted_state))
    tolerance = 3 * torch.finfo(dtype).eps  # layers and read-outs round in between
    for a, b in zip((y, *parts), (wanted, *wanted_parts)):
        assert a.dtype == dtype
        same(a.float(), b, "half", tolerance)
    y.float().square().sum().backward()
    wanted.square().sum().backward()
    for (name, p), q in zip(half.named_parameters(), single.parameters()):
        assert p.grad.dtype == dtype
        same(p.grad.float(), q.grad, name, 20 * torch.finfo(dtype).eps)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_dynamic_quantisation_leaves_our_layers_or_is_refused():
    model = Model(ll.LSTM(3, 4)).eval()
    x = torch.randn(5, 2, 3)
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    assert type(quantised.head) is not nn.Linear
    same(quantised(x, None)[1], model(x, None)[1], "the layer", 0.0)
    with pytest.raises(TypeError, match=r"LSTM: layers of longlag are not quantised; .* \{torch.nn.Linear\}"):
        torch.ao.quantization.quantize_dynamic(model, {ll.LSTM})
