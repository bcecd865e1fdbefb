"""The C code gives the numbers of the reference engine, compiles without warnings, and learns as `Online` does."""

import subprocess

import numpy as np
import pytest
import torch
from c_learners import LEARNERS
from helpers import LAYERS, ONE_WAY, parts, randn
from torch import nn

import longlag as ll
from longlag import learn
from longlag.export import _c

STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O0"]
T = 12


def program(path, main, *texts):
    """A program of several exported files, compiled strictly with sanitizers."""
    path.write_text("\n".join([*texts, "#include <stdio.h>", "int main(void)", "{", *main, "return 0;", "}", ""]))
    binary = path.with_suffix("")
    done = subprocess.run(["gcc", *STRICT, str(path), "-o", str(binary), "-lm"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]

    def run(numbers):
        text = "\n".join(repr(float(v)) for v in numbers)
        done = subprocess.run([str(binary)], input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:3000]
        return [float(v) for v in done.stdout.split()]

    return run


def read(name, n):
    return f'for (int i = 0; i < {n}; ++i) if (scanf("%lf", &{name}[i]) != 1) return 9;'


def write(name, n):
    return f'for (int i = 0; i < {n}; ++i) printf("%.17g\\n", (double){name}[i]);'


def test_every_layer_of_the_registry_in_one_strict_program(tmp_path):
    """Two sequences of every layer, in double: outputs and states."""
    nets, texts, main, inputs, wanted = [], [], ["static double x[8], y[64];"], [], []
    for name in ONE_WAY:
        layer = LAYERS[name](input_size=3)
        text = _c.source(layer, f"net{len(nets)}")
        nets.append(layer)
        texts.append(text)
        me = f"net{len(nets) - 1}"
        main.append(f"static {me} n{me};")
        for repeat in range(2):
            x, state = randn(T, 1, 3, seed=repeat), None
            main.append(f"{me}_reset(&n{me});")
            inputs.append(x.flatten())
            out = layer.step(x[0], None)[0].numel()
            main.append(
                f"for (int t = 0; t < {T}; ++t) {{ {read('x', 3)}"
                f" if ({me}_step(&n{me}, x, y)) return 8; {write('y', out)} }}"
            )
            for x_t in x:
                with torch.no_grad():
                    y, state = layer.step(x_t, state)
                wanted.append(y.flatten())
            assert state is not None
            for part, value in zip(layer.state_spec.names, parts(state)):
                if value.numel():
                    main.append(write(f"n{me}.state_{part.replace('.', '_')}", value.numel()))
                    wanted.append(value.flatten())
    run = program(tmp_path / "all.c", main, *texts)
    np.testing.assert_allclose(run(torch.cat(inputs)), torch.cat(wanted), rtol=1e-9, atol=1e-10)


def test_float(tmp_path):
    """float throughout: literals and functions of math.h."""
    layer = LAYERS["user_everything"](dtype=torch.float32)
    text = _c.source(layer, "net")
    assert "double" not in text
    assert "tanhf(" in text
    assert _c.compare(layer, "net", text, False) < 1e-5


def test_learning_follows_online(tmp_path):
    """Every rule and graph of units in one strict program: outputs, and weights after some updates."""
    texts, main, inputs, wanted = [], ["static double x[3], d[8], y[8];"], [], []
    for k, make in enumerate(LEARNERS.values()):
        online, me = make(), f"net{k}"
        texts.append(_c.source(online, me, learn=True))
        x = randn(T, 1, 3, seed=k)
        out = online.step(x[0]).numel()
        online = make()
        target = randn(T, 1, out, seed=k + 1) / 5
        main += [f"static {me} n{me};", f"{me}_init(&n{me});"]
        call = f"t % 4 == 3 ? {me}_step(&n{me}, x, y) : {me}_learn(&n{me}, x, d, y)"
        work = f"{read('x', 3)} {read('d', out)} if ({call}) return 8;"
        main.append(f"for (int t = 0; t < {T}; ++t) {{ {work} {write('y', out)} }}")
        for t in range(T):
            inputs += [x[t].flatten(), target[t].flatten()]
            wanted.append(online.step(x[t], None if t % 4 == 3 else target[t]).flatten())
        for name, value in online.layer.named_parameters():
            main.append(write(f"n{me}.weight_{name.replace('.', '_')}", value.numel()))
            wanted.append(value.detach().flatten())
    run = program(tmp_path / "all.c", main, *texts)
    np.testing.assert_allclose(run(torch.cat(inputs)), torch.cat(wanted), rtol=1e-9, atol=1e-10)


def test_thousands_of_steps(tmp_path):
    """benchmarks/export.py takes 10,000 steps of every learner of this page."""
    online = LEARNERS["unit"]()
    text = _c.source(online, "net", learn=True)
    compiled = _c.Compiled("net", text, torch.float64, str(tmp_path))
    compiled.call("init")
    steps, generator = 2_000, torch.Generator().manual_seed(1)
    x = torch.randn(steps, 1, 3, generator=generator, dtype=torch.float64)
    size = online.step(x[0]).numel()
    online = LEARNERS["unit"]()
    target = torch.sin(x.cumsum(0) / 3)[..., :1].expand(-1, -1, size) / 2
    ours, wanted = [], []
    for x_t, d in zip(x, target):
        wanted.append(online.step(x_t, d).flatten())
        code, y = compiled.call("learn", x_t, d, outputs=size)
        assert code == 0
        ours.append(y)
    assert float((torch.stack(ours) - torch.stack(wanted)).abs().max()) < 1e-6
    assert online.updates == steps


# ----------------------------------------------------------------------------------------------------- bad input
def compiled(model, folder, learn=False):
    return _c.Compiled("net", _c.source(model, "net", learn), torch.float64, str(folder))


def test_numbers_that_are_not_finite_are_refused_and_change_nothing(tmp_path):
    net = compiled(LEARNERS["lstm"](), tmp_path, learn=True)
    net.call("init")
    x, d = randn(1, 3), randn(1, 2)
    net.call("learn", x, d, outputs=2)
    before = bytes(net.memory)
    for bad in (float("nan"), float("inf")):
        assert net.call("step", torch.full((1, 3), bad), outputs=2)[0] == 1
        assert net.call("learn", x, torch.full((1, 2), bad), outputs=2)[0] == 1
    assert bytes(net.memory) == before
    assert net.call("learn", x, torch.full((1, 2), 1e200, dtype=torch.float64), outputs=2)[0] == 3  # the loss overflows
    net.call("reset")
    assert net.call("learn", x, d, outputs=2)[0] == 0


def test_a_state_that_diverges_is_reported(tmp_path):
    layer = ll.LocalFeedback(3, 2, constrain=None, dtype=torch.float64)
    with torch.no_grad():
        layer.get_parameter("u_l0").fill_(1e200)
    net = compiled(layer, tmp_path)
    net.call("reset")
    assert [net.call("step", randn(1, 3), outputs=2)[0] for _ in range(4)][-1] == 2


class Branching(ll.layers.StepLayer):
    def __init__(self):
        super().__init__(1)
        self.weight = nn.Parameter(torch.ones(1))

    @property
    def state_sizes(self):
        return {"s": 1}

    def advance(self, x_t, state):
        s = state[0] * self.weight + (x_t if float(x_t.sum()) > 0 else -x_t)
        return s, (s,)


class Deciding(Branching):
    def advance(self, x_t, state):
        s = state[0] * self.weight + (x_t if (x_t > 0).all() else -x_t)
        return s, (s,)


class Sorting(Branching):
    def advance(self, x_t, state):
        s = torch.cat([state[0], x_t * self.weight], -1).sort(-1).values[:, :1]
        return s, (s,)


@pytest.mark.parametrize(
    ("model", "options", "complaint"),
    [
        (lambda: ll.LSTM(3, 4, bidirectional=True), {}, "LSTM is bidirectional"),
        (lambda: ll.CRF(3), {}, "a CRF decodes from the end of a sequence .* to_onnx serves it"),
        (Branching, {}, "Branching reads a tensor as a Python number in its step.*torch.where"),
        (Deciding, {}, "Deciding reads a tensor as a Python number in its step.*torch.where"),
        (Sorting, {}, "C has no code for torch's operation sort"),
        (lambda: ll.LSTM(3, 4), {"learn": True}, "--learn needs a learn.Online, got LSTM"),
        (lambda: LEARNERS["lstm"]().__class__, {}, "must be a layer of longlag, a learn.Online or a CRF"),
    ],
)
def test_what_cannot_be_exported_is_named(model, options, complaint, tmp_path):
    with pytest.raises(ll.export.ExportError, match=complaint):
        ll.export.to_c(model(), tmp_path / "net.c", **options)
    assert list(tmp_path.iterdir()) == []


def test_learners_that_c_does_not_know(tmp_path):
    layer = ll.LSTM(3, 4)
    parameters = list(layer.parameters())
    sgd, rule = torch.optim.SGD(parameters, lr=0.1), learn.TruncatedRTRL()
    wrong = {
        "not by TruncatedBPTT": (learn.TruncatedBPTT(5), sgd, {}),
        r"does not learn by SnAp\(1\); LocalForward, Trunc": (learn.SnAp(1), sgd, {}),
        "does not learn by UORO": (learn.UORO(), sgd, {}),
        "must be torch.optim.SGD, got Adam": (rule, torch.optim.Adam(parameters), {}),
        "SGD must have momentum=0, got 0.9": (rule, torch.optim.SGD(parameters, lr=0.1, momentum=0.9), {}),
        "every=1, got 2": (rule, sgd, {"every": 2}),
    }
    for complaint, (rule, optimizer, options) in wrong.items():
        online = learn.Online(layer, None, learn.squared_error, rule, optimizer, **options)
        with pytest.raises(ll.export.ExportError, match=complaint):
            ll.export.to_c(online, tmp_path / "net.c", learn=True)


def test_the_learner_is_not_changed_by_its_export(tmp_path):
    online = LEARNERS["leaky"]()
    online.step(randn(1, 3), randn(1, 2))
    before = {name: value.clone() for name, value in online.layer.state_dict().items()}
    ll.export.to_c(online, tmp_path / "net.c", learn=True)
    assert all(torch.equal(value, before[name]) for name, value in online.layer.state_dict().items())
    assert online.steps == 1
    assert "learns by TruncatedRTRL() and SGD" in (tmp_path / "net.c").read_text()


def test_code_that_computes_otherwise_is_not_written(tmp_path, monkeypatch):
    source = _c.source
    monkeypatch.setattr(_c, "source", lambda *given: source(*given).replace("tanhf(", "sinf("))
    with pytest.raises(ll.export.ExportError, match=r"the C code differs from the reference engine by .* nothing was"):
        ll.export.to_c(ll.LSTM(3, 4), tmp_path / "net.c")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_compiler_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ll.export.ExportError, match="needs a C compiler named cc"):
        ll.export.to_c(ll.LSTM(3, 4), tmp_path / "net.c")
