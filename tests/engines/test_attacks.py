"""What broke the CPU engine once: tensors it took by their address without looking. Crashes are tried in a process."""

import gc
import os
import subprocess
import sys
import weakref

import pytest
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import longlag as ll
from longlag import cells, engines

LAYERS = {
    "lstm": lambda: ll.LSTM(3, 4, dtype=torch.float64),
    "gru": lambda: ll.GRU(3, 4, dtype=torch.float64),
    "lstm97": lambda: ll.LSTM97(3, 2, 2, hidden_units=1, dtype=torch.float64),
    "jordan": lambda: ll.Jordan(3, 5, 4, hidden_feedback=True, dtype=torch.float64),
}


def in_a_process(code, **environment):
    """Run code; what it printed. A crash is a failure with its signal."""
    head = "import torch, longlag as ll\ntorch.manual_seed(0)\n"
    done = subprocess.run(
        [sys.executable, "-c", head + code], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    return done.stdout


def negative(x):
    """The same numbers with the negative bit set."""
    return torch._neg_view(-x.detach())  # pyright: ignore[reportPrivateImportUsage]


# ------------------------------------------------------------------------------------------------- A1 negative bit
@pytest.mark.parametrize("name", LAYERS)
def test_a_negative_bit_is_resolved(name):
    """A1: as input, as weight and as gradient of the output."""
    layer, x = LAYERS[name](), torch.randn(5, 2, 3, dtype=torch.float64)
    want = layer(x)[0]
    error = torch.randn_like(want)
    grads = torch.autograd.grad(want, list(layer.parameters()), error)
    got = layer(negative(x))[0]
    assert torch.equal(got, want)
    for a, b in zip(torch.autograd.grad(got, list(layer.parameters()), negative(error)), grads):
        assert torch.equal(a, b)
    weights = {key: negative(value) for key, value in layer.named_parameters()}
    with torch.no_grad():
        assert torch.equal(torch.func.functional_call(layer, weights, (x,))[0], want)


def test_a_negative_bit_is_resolved_in_the_crf():
    crf, emissions = ll.CRF(3, dtype=torch.float64), torch.randn(2, 4, 3, dtype=torch.float64)
    assert torch.equal(crf.log_partition(negative(emissions)), crf.log_partition(emissions))


# ------------------------------------------------------------------------------------------ A2 changes in between
@pytest.mark.parametrize("option", ["lengths", "reset"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_change_between_forward_and_backward_is_noticed(name, option):
    """A2: torch's own version check."""
    value = torch.tensor([5, 3]) if option == "lengths" else torch.rand(5, 2) < 0.5
    y, _ = LAYERS[name]()(torch.randn(5, 2, 3, dtype=torch.float64), **{option: value})
    value.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_mask_changed_between_forward_and_backward_is_noticed():
    x, W, U = torch.randn(4, 2, 3), torch.randn(5, 3, requires_grad=True), torch.randn(5, 5)
    mask = torch.ones(2, 5)
    y, _ = engines.run("cpu", cells.elman, x, engines.Weights(W, U=U), (), mask=mask)
    mask.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# ----------------------------------------------------------------------------------------- A3 tensors without memory
def test_weights_without_memory_are_refused():
    """A3: storages resized to 0 (FSDP), also of a view, and zero tensors."""
    code = """
def attempt(change):
    layer = ll.LSTM(3, 4)
    for _ in range(3):  # what was examined once must be examined again
        layer(torch.randn(5, 2, 3))
    change(layer)
    try:
        layer(torch.randn(5, 2, 3))
    except RuntimeError as error:
        print("has no memory" in str(error))
def resized(layer):
    layer.weight_hh_l0.untyped_storage().resize_(0)
def view(layer):
    whole = torch.randn(17, 4)
    layer.weight_hh_l0 = torch.nn.Parameter(whole[1:])
    whole.untyped_storage().resize_(0)
def part(layer):
    layer.weight_hh_l0.untyped_storage().resize_(8)
def zero(layer):
    layer.weight_hh_l0 = torch.nn.Parameter(torch._efficientzerotensor((16, 4)))
for change in (resized, view, part, zero):
    attempt(change)
"""
    assert in_a_process(code).split() == ["True"] * 4


CHANGES = {
    "x strided": lambda layer, x: torch.randn(5, 2, 6, dtype=x.dtype)[:, :, ::2],
    "x negative": lambda layer, x: negative(x),
    "U strided": lambda layer, x: change(layer.weight_hh_l0, torch.randn(16, 8, dtype=x.dtype)[:, ::2], x),
    "U negative": lambda layer, x: change(layer.weight_hh_l0, negative(layer.weight_hh_l0), x),
    "U in float32": lambda layer, x: change(layer.weight_hh_l0, layer.weight_hh_l0.detach().float(), x),
    "U with fewer rows": lambda layer, x: change(layer.weight_hh_l0, layer.weight_hh_l0.detach()[:4], x),
    "U on no device": lambda layer, x: change(layer.weight_hh_l0, torch.empty(16, 4, dtype=x.dtype, device="meta"), x),
}


def change(parameter, value, x):
    """Give a parameter other data; returns x."""
    try:
        parameter.data = value
    except RuntimeError:  # torch refuses this one for a parameter that exists
        torch.utils.swap_tensors(parameter, torch.nn.Parameter(value))
    return x


@pytest.mark.parametrize("name", CHANGES)
def test_tensors_are_looked_at_in_every_call(name):
    """A1, A3: also where many calls before had tensors like these."""
    layer, x = ll.LSTM(3, 4, dtype=torch.float64), torch.randn(5, 2, 3, dtype=torch.float64)
    for _ in range(4):
        layer(x)[0].sum().backward()
    after = CHANGES[name](layer, x)
    if name in ("U in float32", "U with fewer rows", "U on no device"):
        with pytest.raises(RuntimeError):
            layer(after)
        return
    got = torch.autograd.grad(layer(after)[0].sum(), list(layer.parameters()))
    layer.engine = "reference"
    for a, b in zip(got, torch.autograd.grad(layer(after)[0].sum(), list(layer.parameters())), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["U strided", "U in float32", "U with fewer rows"])
def test_weights_are_looked_at_in_every_backward_pass(name):
    layer, x = ll.LSTM(3, 4, dtype=torch.float64), torch.randn(5, 2, 3, dtype=torch.float64)
    for _ in range(4):
        layer(x)[0].sum().backward()
    y = layer(x)[0].sum()
    CHANGES[name](layer, x)
    if name == "U strided":
        y.backward()
    else:
        with pytest.raises(RuntimeError, match="U of cell lstm was saved for the backward pass"):
            y.backward()


def test_tensors_with_operations_of_their_own_go_to_the_reference_engine():
    """A3: wrapper subclasses as weights."""
    code = """
from torch.testing._internal.two_tensor import TwoTensor
layer, x = ll.LSTM(3, 4), torch.randn(5, 2, 3)
want = layer(x)[0]
weights = {name: TwoTensor(p.detach(), p.detach().clone()) for name, p in layer.named_parameters()}
got = torch.func.functional_call(layer, weights, (x,))[0]
print(type(got).__name__, torch.allclose(got.a, want, atol=1e-6))
layer.engine = "cpu"
try:
    torch.func.functional_call(layer, weights, (x,))
except ValueError as error:
    print(error)
"""
    first, second = in_a_process(code).splitlines()
    assert first == "TwoTensor True"
    assert second == (
        "engine 'cpu' cannot serve this call: a weight or state is a TwoTensor, which has operations of its own; "
        "engine='reference' can"
    )


def test_distributed_weights_do_not_crash():
    """A3: DTensor (tensor parallelism)."""
    code = """
import torch.distributed as dist
from torch.distributed.tensor import distribute_tensor, init_device_mesh
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
layer, x = ll.LSTM(3, 4), torch.randn(5, 2, 3)
want = layer(x)[0]
weights = {name: distribute_tensor(p.detach(), mesh) for name, p in layer.named_parameters()}
try:
    got = torch.func.functional_call(layer, weights, (x,))[0]
    print(torch.allclose(got.full_tensor(), want, atol=1e-6))
except RuntimeError as error:
    print("DTensor" in str(error))
dist.destroy_process_group()
"""
    assert in_a_process(code).split() == ["True"]


def test_fake_weights_do_not_crash():
    code = """
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode() as mode:
    layer = ll.LSTM(3, 4)
    x = torch.randn(5, 2, 3)
    print(tuple(layer(x)[0].shape))
print(tuple(layer(x)[0].shape))
"""
    assert in_a_process(code).splitlines() == ["(5, 2, 4)"] * 2


# ---------------------------------------------------------------------------------- A4 what autograd is asked to keep
@pytest.mark.parametrize("name", LAYERS)
def test_the_graph_holds_nothing_after_backward(name):
    """A4: memory kept for the backward pass goes when it has run, though the loss lives on."""

    class Box:
        def __init__(self, tensor):
            self.tensor = tensor
            boxes.append((weakref.ref(self), tensor.numel()))

    def large():  # tensors that Python holds somewhere, an attribute of a node of the graph for one
        return [v.shape for v in gc.get_objects() if type(v) is torch.Tensor and v.numel() >= 50 * 2 * 4]

    boxes, layer = [], LAYERS[name]()
    layer(torch.zeros(1, 1, 3, dtype=torch.float64))  # an engine may allocate memory for good
    before = large()
    with torch.autograd.graph.saved_tensors_hooks(Box, lambda box: box.tensor):
        loss = layer(torch.randn(50, 2, 3, dtype=torch.float64))[0].sum()
    assert max(size for _, size in boxes) >= 50 * 2 * 4  # what the engine keeps is among them
    loss.backward()
    gc.collect()
    assert [ref for ref, _ in boxes if ref() is not None] == []
    assert large() == before


@pytest.mark.parametrize("name", ["lstm", "gru", "lstm97"])
def test_checkpointing_frees_what_the_backward_pass_reads(name):
    """A4: every block that the engine keeps passes through the hooks of autograd."""
    layer, x = LAYERS[name](), torch.randn(50, 4, 3, dtype=torch.float64, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        y = layer(x)[0]
    units = 5 if name == "lstm97" else 4
    assert sum(saved) >= 2 * 50 * 4 * units  # outputs and net inputs at least
    nodes = [y.grad_fn]
    while nodes:
        node = nodes.pop()
        assert [value for value in getattr(node, "__dict__", {}).values() if isinstance(value, torch.Tensor)] == []
        nodes += [following for following, _ in node.next_functions if following is not None]
    plain = torch.autograd.grad(y.sum(), [x, *layer.parameters()])
    again = checkpoint(lambda x: layer(x)[0], x, use_reentrant=False)
    for a, b in zip(torch.autograd.grad(again.sum(), [x, *layer.parameters()]), plain):
        assert torch.equal(a, b)


def test_hooks_may_move_saved_tensors():
    layer, x = LAYERS["lstm"](), torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    want = torch.autograd.grad(layer(x)[0].sum(), x)[0]
    with torch.autograd.graph.save_on_cpu():
        got = layer(x)[0]
    assert torch.equal(torch.autograd.grad(got.sum(), x)[0], want)


@pytest.mark.parametrize("name", LAYERS)
def test_hooks_that_change_a_dtype_are_refused(name):
    code = f"""
from test_attacks import LAYERS
layer = LAYERS[{name!r}]()
with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.half() if t.is_floating_point() else t):
    y = layer(torch.randn(5, 2, 3, dtype=torch.float64))[0]
try:
    y.sum().backward()
except RuntimeError as error:
    print("come back" in str(error) or "dtype" in str(error) or "Half" in str(error))
"""
    here = os.path.dirname(__file__)
    path = os.pathsep.join([here, os.path.dirname(here), *sys.path])
    assert in_a_process(code, PYTHONPATH=path).split() == ["True"]


# ---------------------------------------------------------------------------------- A5 operators check for themselves
def operands(B=2, T=4, H=5):
    names = ["x", "W", "b_x", "bias_hh", "U", "y_0"]
    shapes = [(T, B, 3), (H, 3), (H,), (H,), (H, H), (B, H)]
    return [f"elman {cells.elman.key}", names, [torch.randn(shape) for shape in shapes], False, 0.0]


@pytest.mark.parametrize(
    ("mask", "lengths", "reset", "message"),
    [
        (torch.ones(1, 5), None, None, r"mask of cell elman must have shape \(2, 5\) on cpu, got \(1, 5\)"),
        (torch.ones(2, 5).double(), None, None, "mask of cell elman must be torch.float32, got torch.float64"),
        (None, torch.tensor([4]), None, r"lengths of cell elman must have shape \(2,\) on cpu, got \(1,\)"),
        (None, torch.ones(2), None, "lengths of cell elman must be torch.int64, got torch.float32"),
        (None, None, torch.zeros(1, 2, dtype=torch.bool), r"reset of cell elman must have shape \(4, 2\) on cpu"),
        (None, None, torch.zeros(4, 2), "reset of cell elman must be torch.bool, got torch.float32"),
    ],
)
def test_an_operator_refuses_short_options(mask, lengths, reset, message):
    with pytest.raises(RuntimeError, match=message):
        torch.ops.longlag.recurrent(*operands(), mask, lengths, reset)


def test_an_operator_refuses_names_that_do_not_fit():
    key, names, given, *options = operands()
    for wrong in (names[:-1], [*names[:-1], "U"], names[::-1]):
        with pytest.raises(RuntimeError, match="names must be x, W and others, one for each of 6"):
            torch.ops.longlag.recurrent(key, wrong, given, *options, None, None, None)
    with pytest.raises(RuntimeError, match="cell elman has no tensor 'c_0'"):
        torch.ops.longlag.recurrent(key, [*names[:-1], "c_0"], given, *options, None, None, None)


def test_an_operator_refuses_short_results():
    words = [*operands(), None, None, None]
    out, end, kept = torch.ops.longlag.recurrent(*words)
    back = torch.ops.longlag.recurrent_backward
    assert len(back(*words, out, kept, [out, end])) == 6
    with pytest.raises(RuntimeError, match="kept of cell elman was saved for the backward pass"):
        back(*words, out, kept[:3], [out, end])
    with pytest.raises(RuntimeError, match="out of cell elman was saved for the backward pass"):
        back(*words, out[:1], kept, [out, end])
    with pytest.raises(RuntimeError, match="gradient 0 of cell elman must be"):
        back(*words, out, kept, [out[:1], end])
    with pytest.raises(RuntimeError, match=r"gradient 1 of cell elman must be .* got none"):
        back(*words, out, kept, [out])


def test_a_crf_operator_refuses_short_tensors():
    chain = [torch.randn(2, 4, 3), torch.ones(2, 4, dtype=torch.bool), *[torch.randn(3)] * 2, torch.randn(3, 3)]
    for k, name in ((1, "mask"), (2, "start_transitions"), (4, "transitions")):
        short = list(chain)
        short[k] = chain[k][:1]
        with pytest.raises(RuntimeError, match=f"CRF: {name} must have shape"):
            torch.ops.longlag.crf_log_partition(*short)


def test_sizes_changed_after_construction_are_refused():
    """A5: an error that names what is wrong, not a crash."""
    code = """
x = torch.randn(5, 2, 3)
def attempt(layer, name, value, *state, **options):
    setattr(layer, name, value)
    try:
        layer(x, *state, **options)
    except (ValueError, RuntimeError) as error:
        print("must have" in str(error))
attempt(ll.LSTM(3, 4), "hidden_size", 9, (torch.zeros(1, 2, 9), torch.zeros(1, 2, 9)))
attempt(ll.LSTM(3, 4, recurrent_dropout=0.5), "hidden_size", 2)
attempt(ll.LSTM97(3, 2, 2), "blocks", 3)
attempt(ll.LSTM97(3, 2, 2), "blocks", 1)
attempt(ll.Jordan(3, 4, 2), "hidden_size", 7)
attempt(ll.Jordan(3, 4, 2), "output_size", 7)
"""
    printed = in_a_process(code).split()
    assert printed[:4] == ["True"] * 4
    assert "False" not in printed


def test_jordan_takes_an_empty_batch():
    """A6."""
    layer = ll.Jordan(3, 5, 4, dtype=torch.float64)
    z, fb = layer(torch.zeros(6, 0, 3, dtype=torch.float64))
    assert (z.shape, fb.shape) == ((6, 0, 4), (0, 4))
    z.sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, torch.zeros_like(parameter))


# ----------------------------------------------------------------------------------------------- D2, D18: cells by key
def make():
    return ll.cell(gates="a", states="c")(lambda a, c: (a * c, 0.5 * a + 0.25 * c))


def test_of_two_equal_cells_either_may_go():
    """D2: the one that was made last is collected, the other still runs where only its key is known."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    first, second = make(), make()
    assert first.key == second.key
    assert cells.find(first.key) in (first, second)
    del second
    gc.collect()
    assert cells.find(first.key) is first
    layer = ll.Recurrent(first, 3, 4)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert layer(torch.zeros(2, 1, 3))[0].shape == (2, 1, 4)


def test_an_exported_layer_runs_in_a_new_process(tmp_path):
    """D18: operators are there on import, built-in cells are found by key, a missing cell is named."""
    code = f"""
@ll.cell(gates="a", states="c")
def mine(a, c):
    return a * c, 0.5 * a + 0.125 * c
x = torch.ones(5, 2, 3)
for name, layer in (("lstm", ll.LSTM(3, 4)), ("mine", ll.Recurrent(mine, 3, 4))):
    torch.export.save(torch.export.export(layer, (x,)), {str(tmp_path)!r} + "/" + name + ".pt2")
print(ll.LSTM(3, 4)(x)[0].shape == (5, 2, 4))
"""
    assert in_a_process(code).split() == ["True"]
    code = f"""
import sys
print([m for m in ("numba", "sympy", "llvmlite") if m in sys.modules])
x = torch.ones(5, 2, 3)
load = lambda name: torch.export.load({str(tmp_path)!r} + "/" + name + ".pt2").module()
print(tuple(load("lstm")(x)[0].shape))
try:
    load("mine")(x)
except LookupError as error:
    print(error)
"""
    heavy, shape, missing = in_a_process(code).splitlines()
    assert (heavy, shape) == ("[]", "(5, 2, 4)")
    assert "this program runs the cell mine" in missing
    assert "import the module that defines it first" in missing


# ---------------------------------------------------------------------------------------------------- D3, D20, D23
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # in torch itself
def test_the_crf_falls_back_in_forward_mode():
    """D3."""
    crf, emissions = ll.CRF(3, dtype=torch.float64), torch.randn(2, 4, 3, dtype=torch.float64)
    tangent = torch.randn_like(emissions)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(emissions, tangent)
        slope = torch.autograd.forward_ad.unpack_dual(crf.log_partition(dual)).tangent
    assert slope is not None
    emissions.requires_grad_()
    d = torch.autograd.grad(crf.log_partition(emissions).sum(), emissions)[0]
    torch.testing.assert_close(slope.sum(), (d * tangent).sum(), rtol=1e-10, atol=0)


@pytest.mark.parametrize("name", [*LAYERS, "crf"])
def test_errors_may_come_in_batches(name):
    """D20: `jacobian(vectorize=True)` and `is_grads_batched` equal one backward pass after another."""
    layer = ll.CRF(3, dtype=torch.float64) if name == "crf" else LAYERS[name]()
    x = torch.randn(3, 2, 3, dtype=torch.float64)

    def function(x):  # outputs and all parts of the final state
        return layer.log_partition(x) if name == "crf" else tuple(tree_leaves(layer(x)))

    fast = torch.autograd.functional.jacobian(function, x, vectorize=True)
    slow = torch.autograd.functional.jacobian(function, x)
    layer.engine = "reference"
    plain = torch.autograd.functional.jacobian(function, x)
    for a, b, c in zip(*map(tree_leaves, (fast, slow, plain)), strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, rtol=1e-10, atol=1e-13)


def test_an_error_about_shapes_is_also_what_torch_raises():
    """D23."""
    x, W = torch.randn(4, 2, 3), torch.zeros(5, 3)
    for kind in (ValueError, RuntimeError, engines.ShapeError):
        with pytest.raises(kind, match="U of cell elman must have shape"):
            engines.run("cpu", cells.elman, x, engines.Weights(W), ())
    for kind in (TypeError, RuntimeError, engines.DtypeError):
        with pytest.raises(kind, match=r"must be torch.float32 on cpu like x"):
            engines.run("cpu", cells.elman, x, engines.Weights(W.double(), U=torch.zeros(5, 5)), ())


# ------------------------------------------------------------------------------------------------------ item 6
def test_a_cell_that_was_run_can_be_collected():
    gone = []
    for _ in range(3):
        mine = ll.cell(gates="a")(lambda a, y: cells.tanh(a) + 0.5 * y)
        layer = ll.Recurrent(mine, 2, 3)
        for T in (1, 2, 3):
            layer(torch.randn(T, 2, 2))[0].sum().backward()
        gone.append(weakref.ref(mine))
        del mine, layer
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3
