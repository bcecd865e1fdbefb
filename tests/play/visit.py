"""What the tests of the playground share: views of the page, and its layer in Python."""

import importlib.util
from pathlib import Path

import torch

import longlag as ll

TOOL = Path(__file__).resolve().parents[2] / "tools" / "playground.py"
UNITS, LENGTH = 4, 8
SMALL = f"units={UNITS}&length={LENGTH}&step=7"
TYPED = '@cell(gates="a z")\ndef mine(a, z, y):\n    return sigmoid(z) * y + (1 - sigmoid(z)) * tanh(a)'


def tool():
    spec = importlib.util.spec_from_file_location("playground", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BUILDER = tool()
SHOWN = BUILDER.shown()


def drawn(page):
    """Wait until the page has drawn its state."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def visit(page, view):
    """Follow a link to a view of the page."""
    page.evaluate("(view) => { location.hash = view; dispatchEvent(new PopStateEvent('popstate')); }", view)
    drawn(page)


def picture(page, name):
    return page.inner_html(f"#picture-{name} .plot")


def pictures(page):
    return page.locator("#pictures svg").evaluate_all("(all) => all.map((picture) => picture.outerHTML)")


def tensor(rows):
    return torch.tensor(rows, dtype=torch.float64)


def close(got, wanted, tolerance=1e-12):
    torch.testing.assert_close(
        tensor(got), torch.as_tensor(wanted, dtype=torch.float64), rtol=tolerance, atol=tolerance
    )


@torch.no_grad()
def layer_of(cell, told):
    """The page's layer, in Python, and the page's inputs."""
    layer = ll.Recurrent(cell, 3, UNITS, dtype=torch.float64, engine="reference").eval()
    for parameter in layer.parameters():
        parameter.zero_()
    weights = told["weights"]
    layer.get_parameter("weight_ih_l0").copy_(torch.cat([tensor(weights["W"][gate]) for gate in cell.input_gates]))
    if cell.dense:
        layer.get_parameter("weight_hh_l0").copy_(torch.cat([tensor(weights["U"][gate]) for gate in cell.source_of]))
    for name, values in weights["params"].items():
        if name not in cell.fixed:
            layer.get_parameter(f"{name}_l0").copy_(tensor(values))
    x = tensor(told["inputs"])
    if cell.per_step:
        columns = [torch.full((LENGTH, 1), 0.0 if name in cell.noise else 1.0).double() for name in cell.per_step]
        return ll.layers.Joined(layer), torch.cat([x, *columns], -1)
    return layer, x
