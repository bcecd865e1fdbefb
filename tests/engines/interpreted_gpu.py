"""The contract of the GPU engine under Triton's interpreter; `test_gpu` starts this file with TRITON_INTERPRET=1.

The time loops are the ones that run on a GPU. Tiles are smaller, so that few steps make several chunks.
"""

import itertools

import helpers
import pytest
import torch
from contract import in_float64, problem, results

import longlag as ll
from longlag import engines
from longlag.engines.cpu.cache import machine
from longlag.engines.gpu import loops, run
from longlag.engines.gpu.equations import equations
from longlag.engines.gpu.plan import Plan, power_of_two

LIMIT = {torch.float32: 1e-5, torch.bfloat16: 2e-2}  # relative to the largest entry
loops.UNROLL = 4
ALL = list(itertools.product((False, True), repeat=4))  # ragged, reset, mask, reverse


def small(kind, H):
    """A plan of this kind with small tiles."""
    row = max(power_of_two(H), 16 if kind in ("resident", "stepwise") else 1)
    return {
        "scan": Plan("scan", 8, min(row, 8), 1),
        "local": Plan("local", 1, min(row, 8), 1),
        "resident": Plan("resident", 16, row, 4),
        "stepwise": Plan("stepwise", 2, row, 1),
    }[kind]


def kind_of(cell, stepwise):
    if cell.dense:
        return "stepwise" if stepwise else "resident"
    return "scan" if equations(cell).linear else "local"


def compare(monkeypatch, cell, dtype, kind, norm, options, *, T=5, B=4, H=13):
    """Outputs and all gradients against float64; in bfloat16 at most the reference's own error, if that is larger."""
    monkeypatch.setattr(run, "plan", lambda cell, H, *_: small(kind, H))
    ragged, reset, mask, reverse = options
    drawn = problem(cell, dtype, T=T, B=B, inputs=3, H=H, norm=norm, ragged=ragged, reset=reset, mask=mask)
    ours, exact = results("gpu", cell, *drawn, reverse), results("reference", cell, *in_float64(*drawn[:2]), reverse)
    theirs = results("reference", cell, *drawn, reverse) if dtype == torch.bfloat16 else exact
    for mine, same, wanted in zip(ours, theirs, exact, strict=True):
        if wanted.numel():
            scale = wanted.abs().max().clamp(min=1e-3)
            allowed = torch.maximum(LIMIT[dtype] * scale, (same - wanted).abs().max())
            assert mine.dtype == dtype
            assert (mine - wanted).abs().max() <= allowed


CASES = [
    (name, dtype, norm)
    for name, dtype, norm in itertools.product(helpers.CELLS, LIMIT, (False, True))
    if "beta" not in helpers.CELLS[name].params  # refused by name, see test_gpu
]


@pytest.mark.parametrize(("number", "case"), list(enumerate(CASES)))
def test_every_cell(monkeypatch, number, case):
    """Every cell, dtype and norm with all options, and with two of the other combinations in turn."""
    name, dtype, norm = case
    cell = helpers.CELLS[name]
    chosen = [ALL[-1], ALL[number * 7 % 16]]
    for stepwise, options in zip((number % 2 == 0, number % 2 == 1), chosen):
        compare(monkeypatch, cell, dtype, kind_of(cell, stepwise), norm, options)


@pytest.mark.parametrize("options", ALL)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gru", "resident"),
        ("user_gated", "stepwise"),
        ("net_feedback", "scan"),
        ("activation_feedback", "local"),
        ("net_feedback", "local"),
    ],
)
def test_every_option_in_every_kind_of_loop(monkeypatch, name, kind, options):
    compare(monkeypatch, helpers.CELLS[name], torch.float32, kind, False, options, T=5, B=2, H=3)


@ll.cell(gates="a z", dense=False)
def minimal(a, z, y):
    """Linear in y itself."""
    return ll.cells.sigmoid(z) * y + (1 - ll.cells.sigmoid(z)) * a


@pytest.mark.parametrize("options", [ALL[0], ALL[-1], ALL[9]])
@pytest.mark.parametrize("T", [1, 8, 19])
def test_a_scan_over_chunks_of_any_length(monkeypatch, T, options):
    assert equations(minimal).linear is not None
    compare(monkeypatch, minimal, torch.float32, "scan", False, options, T=T)


def test_what_counts_as_linear():
    found = {name for name, cell in helpers.CELLS.items() if not cell.dense and equations(cell).linear}
    cells = {name for name in helpers.CELLS if name.startswith("memory_cell")}
    assert found == {"net_feedback", *cells}


@pytest.mark.parametrize("H", [17, 40])
@pytest.mark.parametrize("name", ["lstm", "user_apart"])
def test_default_plans_and_several_programs(name, H):
    """B beyond one program's sequences, H beyond one tile."""
    drawn = problem(
        helpers.CELLS[name], torch.float32, T=2, B=18, inputs=2, H=H, norm=False, ragged=True, reset=True, mask=True
    )
    ours, exact = (
        results("gpu", helpers.CELLS[name], *drawn, True),
        results("reference", helpers.CELLS[name], *in_float64(*drawn[:2]), True),
    )
    for mine, wanted in zip(ours, exact):
        assert (mine - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.parametrize("lengths", [[0, 9, -7]])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["lstm", "gru", "net_feedback"])
def test_lengths_outside_the_sequence(monkeypatch, name, reverse, lengths):
    cell = helpers.CELLS[name]
    monkeypatch.setattr(run, "plan", lambda cell, H, *_: small(kind_of(cell, False), H))
    given, options, leaves = problem(
        cell, torch.float32, T=4, B=3, inputs=2, H=5, norm=False, ragged=True, reset=False, mask=False
    )
    options["lengths"] = torch.tensor(lengths)
    ours, theirs = (results(engine, cell, given, options, leaves, reverse) for engine in ("gpu", "reference"))
    for mine, wanted in zip(ours, theirs):
        assert (mine - wanted).abs().max() <= 1e-5 * wanted.abs().max().clamp(min=1e-3)


def test_layers_by_name_and_without_gradients(monkeypatch):
    layer = ll.GRU(3, 5, num_layers=2, bidirectional=True, engine="gpu")
    same = ll.GRU(3, 5, num_layers=2, bidirectional=True, engine="reference")
    same.load_state_dict(layer.state_dict())
    x = torch.randn(4, 2, 3)
    assert layer.engine_for(x) == "gpu: asked for by name"
    helpers.same(layer(x, lengths=[4, 2]), same(x, lengths=[4, 2]), tolerance=1e-5)
    asked, real = [], run.forward
    monkeypatch.setattr(run, "forward", lambda call, save: asked.append(save) or real(call, save))
    with torch.no_grad():
        layer(x)
    assert asked == [False] * 4


def test_the_first_launch_announces_its_compilation(monkeypatch, capsys):
    mine = ll.cell(gates="a", dense=False)(lambda a, y: ll.cells.tanh(a) + 0.53125 * y)
    monkeypatch.setattr(machine, "PATIENCE", 0.0)
    layer, said = ll.Recurrent(mine, 2, 3, engine="gpu"), []
    for _ in range(2):
        with torch.no_grad():
            layer(torch.zeros(2, 1, 2))
        said.append(capsys.readouterr().err)
    assert said == ["longlag: compiling <lambda>.forward (once; the result is kept in Triton's cache) …\n", ""]


def test_second_derivatives():
    layer = ll.Leaky(2, 3, engine="gpu", learn_alpha=True)
    same = ll.Leaky(2, 3, engine="reference", learn_alpha=True)
    same.load_state_dict(layer.state_dict())
    gathered = []
    for one in (layer, same):
        x = torch.linspace(-1, 1, 12).view(3, 2, 2).requires_grad_()
        (d,) = torch.autograd.grad(one(x)[0].square().sum(), x, create_graph=True)
        gathered.append(torch.autograd.grad(d.square().sum(), [x, *one.parameters()]))
    helpers.same(*gathered, tolerance=1e-5)


def test_opcheck_and_compile():
    from longlag.engines.gpu import operators

    cell = helpers.CELLS["gru"]
    T, B, H = 3, 2, 5
    sizes = {"net": (T, B, 3 * H), "U": (3 * H, H), "bias": (1, H), "first_y": (B, H)}
    given = [torch.randn(size).requires_grad_() for size in sizes.values()]
    words = (f"gru {cell.key}", list(sizes), given, True, 0.0, None, torch.tensor([3, 1]), torch.rand(T, B) < 0.3, True)
    torch.library.opcheck(
        torch.ops.longlag.recurrent_gpu.default,
        words,
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
    layer, x = ll.GRU(3, 5, engine="gpu"), torch.randn(4, 2, 3, requires_grad=True)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    wanted = [x, *layer.parameters()]
    eager, traced = (torch.autograd.grad(f(x)[0].square().sum(), wanted) for f in (layer, compiled))
    helpers.same(traced, eager, tolerance=1e-6)
    with pytest.raises(engines.ShapeError, match=r"^engine 'gpu': U of cell gru must be"):
        operators.forward(*words[:2], [given[0], given[1][:3], *given[2:]], *words[3:])
