"""Special cases: where two systems must be one and the same."""

import pytest
import torch
from helpers import LAYERS, gradients, numpy_weights, parts, randn, same, some_state, weighted_sum, whole

import longlag as ll
from longlag import cells

T, B = 6, 2


def both(first, second, state_first=None, state_second=None):
    """Outputs, final states and gradients in x and every shared parameter are equal."""
    x, results = randn(T, B, first.input_size).requires_grad_(), []
    for layer, state in ((first, state_first), (second, state_second)):
        y, final = layer(x, state)
        results.append((y, parts(final), gradients(weighted_sum(y), layer, x)))
    (y, final, found), (y_other, final_other, found_other) = results
    same(y, y_other, "outputs")
    shared = found.keys() & found_other.keys()
    assert len(shared) > 1
    same({k: found[k] for k in shared}, {k: found_other[k] for k in shared}, "gradient of")
    return final, final_other


def with_weights(name, of, **extra):
    """A layer with the weights of another, as far as it has them, and ``extra`` ones."""
    layer = LAYERS[name]()
    own = layer.state_dict()
    own |= {k: v for k, v in of.state_dict().items() if k in own} | extra
    layer.load_state_dict(own)
    return layer


def test_leaky_with_alpha_one_is_elman():
    elman = LAYERS["elman"]()
    leaky = with_weights("leaky", elman, alpha_l0=torch.ones(4))
    state = some_state(elman, B)[0]
    same(*both(leaky, elman, state, state))


def test_skip_without_delays_is_elman():
    elman = LAYERS["elman"]()
    skip = with_weights("skip_none", elman)
    state = some_state(elman, B)[0]
    final, final_other = both(skip, elman, state.unsqueeze(2), state)
    same(final[0].squeeze(2), final_other[0])


def test_skip_with_silent_links_is_elman():
    elman = LAYERS["elman"]()
    both(with_weights("skip_several", elman, weight_skip_l0=torch.zeros(2, 4, 4)), elman)


@pytest.mark.parametrize("name", ["elman", "lstm", "gru", "leaky", "local_net", "skip", "user_everything", "jordan"])
def test_without_biases_is_with_biases_of_zero(name):
    without, zero = LAYERS[name](bias=False), LAYERS[name]()
    biases = {key: torch.zeros_like(value) for key, value in zero.state_dict().items() if key.startswith("bias")}
    assert biases
    zero.load_state_dict({**without.state_dict(), **biases})
    both(without, zero)


@pytest.mark.parametrize(("name", "gain"), [("local_net", "u_l0"), ("local_activation", "v_l0")])
def test_local_feedback_without_gain_is_static(name, gain):
    static = LAYERS["local_static"]()
    both(with_weights(name, static, **{gain: torch.zeros(4)}), static)


def test_a_static_layer_is_a_feed_forward_layer():
    layer, x = LAYERS["local_static"](), randn(T, B, 3)
    y, state = layer(x)
    assert state == ()
    same(y, torch.tanh((x @ layer.weight_ih_l0.t() + layer.bias_ih_l0) / 2))


def test_the_network_of_1992_is_its_groups():
    """One hidden layer, static outputs: LocalFeedback layers side by side and a static one on top."""
    net, x = LAYERS["local_network"](), randn(T, B, 3)
    y, _ = net(x)
    hidden = [net.groups[f"hidden_0_{kind}"](x)[0] for kind in ("static", "net", "activation")]
    same(y[..., :1], net.groups["output_static"](torch.cat(hidden, -1))[0])
    same(y[..., 1:3], net.groups["output_net"](x)[0])
    same(y[..., 3:], net.groups["output_activation"](x)[0])


def test_lstm97_without_recurrence_is_lstm97_with_silent_recurrence():
    plain = LAYERS["lstm97_feedforward"]()
    loud = LAYERS["lstm97"](recurrent=True, input_to_output=True, bias=False)
    wide = {}
    for key, value in loud.state_dict().items():
        given = plain.state_dict()[key]
        wide[key] = torch.cat([given, given.new_zeros(len(given), value.shape[1] - given.shape[1])], 1)
    loud.load_state_dict(wide)
    x, state = randn(T, B, 3), some_state(plain, B)
    (y, final), (y_loud, final_loud) = plain(x, whole(state)), loud(x, whole(state))
    same(y, y_loud)
    same(final, final_loud)


def test_lstm97_without_output_gates_is_lstm97_with_open_ones():
    closed = LAYERS["lstm97_no_output_gates"](size=2)
    opened = LAYERS["lstm97"](size=2, bias=("gates", "output"))
    d, nh, nb = 3, 1, 2
    wide = {}
    for key, value in opened.state_dict().items():
        if key.endswith("_og"):
            wide[key] = torch.zeros_like(value) if key.startswith("weight") else torch.full_like(value, 40.0)  # σ = 1
        elif key.startswith("weight") and key != "weight_out":
            given = closed.state_dict()[key]
            wide[key] = torch.zeros_like(value)  # no one listens to the output gates
            wide[key][:, : d + nh + nb], wide[key][:, d + nh + 2 * nb :] = given.split([d + nh + nb, nb * 2], 1)
        else:
            wide[key] = closed.state_dict()[key]
    opened.load_state_dict(wide)
    x = randn(T, B, 3)
    same(opened(x)[0], closed(x)[0])


def test_lstm97_with_one_gate_for_all_is_the_memory_cell():
    """Without recurrence a block of one cell is `cells.memory_cell` on W x alone."""
    net, x = LAYERS["lstm97"](size=1, block_size=1, hidden_units=0, recurrent=False, output_size=None), randn(T, B, 3)
    y, (_, s) = net(x)
    P = dict(net.named_parameters())
    cell, state = cells.memory_cell(), torch.zeros(B, 1, dtype=torch.float64)
    for t in range(T):
        i, a, o = (torch.nn.functional.linear(x[t], P[f"weight_{k}"], P[f"bias_{k}"]) for k in ("ig", "cell", "og"))
        out, state = cell.step(i, a, o, state)
        same(y[t], out)
    same(s, state)


def test_named_layers_are_recurrent_with_their_cell():
    for name, cell in (("lstm", cells.lstm), ("gru", cells.gru), ("elman", cells.elman), ("leaky", cells.leaky)):
        named = LAYERS[name]()
        general = ll.Recurrent(cell, 3, 4, dtype=torch.float64, engine="reference")
        general.load_state_dict(named.state_dict())
        x = randn(T, B, 3)
        assert torch.equal(named(x)[0], general(x)[0])


def test_a_users_cell_that_is_elmans_is_elman():
    @ll.cell(gates="n:x m:y")
    def apart(n, m):
        return cells.tanh(n + m)

    general = ll.Recurrent(apart, 3, 4, dtype=torch.float64, engine="reference")
    elman = LAYERS["elman"]()
    general.load_state_dict(elman.state_dict())
    both(general, elman)


def test_parameters_keep_their_names_and_shapes():
    """What a saved file depends on."""
    shapes = {key: tuple(value.shape) for key, value in numpy_weights(LAYERS["user_everything"](3, 4)).items()}
    assert shapes == {
        "weight_ih_l0": (8, 3),  # a, z
        "weight_hh_l0": (8, 4),  # a, m
        "bias_ih_l0": (8,),
        "bias_hh_l0": (8,),
        "p_l0": (4,),
        "q_l0": (4,),
    }
    layer = LAYERS["user_everything"](3, 4)
    assert (layer.p_l0 == 0.7).all()
    assert (layer.q_l0 == 1.3).all()
