"""The playground in a real Chromium: its numbers are Python's, its controls work, its console stays empty."""

import importlib.util
import json
import math
import re
from pathlib import Path
from threading import Thread

import pytest
import torch
from browser import chromium

import longlag as ll
from longlag import cells, flow
from longlag.play import PAGE, Playground

playwright = pytest.importorskip("playwright.sync_api", reason="the playground is not tested: no playwright")

TOOL = Path(__file__).resolve().parents[2] / "tools" / "playground.py"
UNITS, LENGTH = 5, 12
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


@pytest.fixture(scope="module")
def server():
    with Playground(0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    path = chromium()
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def context(browser):
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context
    context.close()


@pytest.fixture
def page(context, server):
    """The page as a visitor finds it; whatever the console says is an error of the test."""
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url) if server.address not in request.url else None)
    page.set_default_timeout(10_000)
    page.goto(f"{server.address}#{SMALL}")
    yield page
    page.close()
    assert [line for line in said if not line.startswith(("blob:", "data:"))] == []


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


# ------------------------------------------------------------------------------------------------- numbers


@torch.no_grad()
def layer_of(cell, told):
    """The page's layer, in Python, and the page's inputs."""
    layer = ll.Recurrent(cell, 3, UNITS, dtype=torch.float64, engine="reference").eval()
    for parameter in layer.parameters():
        parameter.zero_()
    weights = told["weights"]
    layer.weight_ih_l0.copy_(torch.cat([tensor(weights["W"][gate]) for gate in cell.input_gates]))
    if cell.dense:
        layer.weight_hh_l0.copy_(torch.cat([tensor(weights["U"][gate]) for gate in cell.source_of]))
    for name, values in weights["params"].items():
        if name not in cell.fixed:
            layer.get_parameter(f"{name}_l0").copy_(tensor(values))
    x = tensor(told["inputs"])
    if cell.per_step:
        columns = [torch.full((LENGTH, 1), 0.0 if name in cell.noise else 1.0).double() for name in cell.per_step]
        return ll.layers.Joined(layer), torch.cat([x, *columns], -1)
    return layer, x


@pytest.fixture(scope="module")
def told(context, server):
    """What the page computes for every cell."""
    page, found = context.new_page(), {}
    page.goto(f"{server.address}#{SMALL}")
    for name in SHOWN:
        visit(page, f"{SMALL}&cell={name}&gain=1.3&seed=3")
        found[name] = page.evaluate("playground.numbers()")
    page.close()
    return found


def carousel_of(layer, x, part):
    """∂v_j(T)/∂v_j(T−q) by autograd through single steps, (T + 1, H)."""
    state, states = layer.initial_state(1), []
    for x_t in [*x, None]:
        state = tuple(v.requires_grad_() for v in (state if isinstance(state, tuple) else (state,)))
        states.append(state[part])
        if x_t is not None:
            _, state = layer.step(x_t.unsqueeze(0), state if len(state) > 1 else state[0])
    found = [
        torch.autograd.grad(states[-1].flatten()[j], states, retain_graph=True, allow_unused=True) for j in range(UNITS)
    ]
    columns = [[0.0 if g is None else float(g.flatten()[j]) for g in reversed(row)] for j, row in enumerate(found)]
    return tensor(columns).t()


@pytest.mark.parametrize("name", SHOWN)
def test_the_numbers_of_a_cell_are_pythons(name, told):
    made, cell = told[name], SHOWN[name]
    layer, x = layer_of(cell, made)
    y, _ = layer(x)
    close([row["y_new"] for row in made["results"]], y.detach())
    last = flow.error_flow(layer, x)
    close([math.exp(log) for log in made["log_norm"]], last.norm[:, 0])
    if made["bound"] is not None:
        close([math.exp(made["bound"]["log"] * q) for q in range(LENGTH + 1)], last.bound[:, 0])
        assert made["bound"]["is"] == last.bound_is
    radius = flow.spectrum(layer, x).radius[6, 0]
    close(max(value["size"] for value in made["eigenvalues"]), radius, 1e-9)  # roots lose digits where two are close
    kept = made["carousel"]
    close(kept["full"], carousel_of(layer, x, cell.fed_back.index(kept["of"])))
    if made["memory"] is not None:  # what the steps wrote, added up, is the state at the end
        v = made["memory"]["of"]
        close(tensor(made["memory"]["rows"]).sum(0).tolist(), made["results"][-1][f"{v}_new"])
    if "y" in cell.fed_back:
        credit = flow.gradient_by_lag(layer, x, lambda y: y.square().sum(-1) / 2).states
        for t, row in enumerate(made["credit"]):
            close(row[1:], credit[t, 1 : t + 1].flatten().flip(0))


def test_the_carousel_and_the_memory_weights_of_lstms(told):
    assert told["lstm97"]["carousel"]["cut"] == [[1.0] * UNITS] * (LENGTH + 1)
    recurrent, x = layer_of(cells.lstm, told["lstm"])
    layer = ll.LSTM(3, UNITS, dtype=torch.float64)
    layer.load_state_dict(recurrent.state_dict())
    memory = flow.memory_weights(layer, x)
    close(told["lstm"]["memory"]["rows"], memory.contributions.squeeze(1).detach())


@torch.no_grad()
def test_the_learning_network_is_lstm97_and_its_rule(page):
    page.wait_for_function("playground.learning.last")
    asked = page.evaluate("playground.learning.question()")
    net = ll.LSTM97(2, blocks=2, block_size=2, output_size=1, output="linear", dtype=torch.float64)
    names = ("weight_ig", "weight_og", "weight_cell"), ("bias_ig", "bias_og", "bias_cell")

    def split(rows, output):
        """The page's matrices, by the names of LSTM97; the column of biases is last."""
        matrix, out = tensor(rows).view(8, 11), tensor(output)
        weights, biases = matrix[:, :-1].split([2, 2, 4]), matrix[:, -1].split([2, 2, 4])
        return (
            dict(zip(names[0], weights))
            | dict(zip(names[1], biases))
            | {"weight_out": out[:-1].view(1, 4), "bias_out": out[-1:]}
        )

    for name, value in split(asked["W"], asked["V"]).items():
        net.get_parameter(name).copy_(value)
    x, target = tensor(asked["x"]).view(-1, 1, 2), tensor(asked["target"])
    rule, state = ll.learn.TruncatedRTRL(), None
    trace = rule.start(net, batch_size=1)
    for x_t in x:
        y, state, trace = rule.step(net, x_t, state, trace)
    close(asked["output"], y.flatten())
    gradients = rule.gradients(net, trace, y - target)
    for name, value in split(asked["dW"], asked["dV"]).items():
        close(value.tolist(), gradients[name])


# ------------------------------------------------------------------------------------------------ controls


def test_every_slider_moves_a_picture(page):
    visit(page, f"{SMALL}&cell=leaky")
    sliders = page.locator("#controls input[type=range]")
    names = sliders.evaluate_all("(all) => all.map((slider) => slider.id)")
    assert names == ["gain", "bias-a", "param-alpha", "length", "units", "step", "seed"]
    for name in names:
        before, address = page.inner_html("#pictures"), page.url
        page.press(f"#{name}", "ArrowRight")  # by the keyboard
        drawn(page)
        assert page.inner_html("#pictures") != before, name
        assert page.url != address, name
        assert page.get_attribute(f"#{name}", "aria-valuetext") == page.inner_text(f"output[for={name}]")


def test_the_address_shows_the_same_again(page):
    page.select_option("#cell", "lstm")
    page.press("#bias-f", "ArrowRight")
    page.select_option("#show", "c")
    drawn(page)
    before, numbers = pictures(page), page.evaluate("playground.numbers()")
    assert "state c" in page.inner_text("#show")
    page.goto("about:blank")
    page.go_back()
    drawn(page)
    assert page.evaluate("playground.numbers()") == numbers
    assert pictures(page) == before


@pytest.mark.parametrize(
    "view", ["cell=nonsense", "units=1e99&length=-5&gain=x", "show=%00&bias.=3&lecture=77&gates=a,b"]
)
def test_an_address_out_of_range_shows_a_page(page, view):
    visit(page, view)
    assert "<svg" in page.inner_html("#learning" if "lecture" in view else "#pictures")


def test_every_cell_can_be_chosen(page):
    options = page.locator("#cell option").evaluate_all("(all) => all.map((option) => option.value)")
    assert options == " ".join(BUILDER.GROUPS.values()).split()
    page.select_option("#cell", "activation_feedback")
    drawn(page)
    assert "activation feedback" in page.locator("#cell option:checked").inner_text()
    assert page.locator("#gain").count() == 0  # no recurrent matrix
    assert "(max|v|/2)^q" in picture(page, "flow")


def test_the_lecture_is_a_story_with_working_buttons(page):
    seen = []
    page.locator("#steps a").nth(1).click()
    for step in range(1, 7):
        drawn(page)
        assert page.locator("#steps a[aria-current]").inner_text() == page.locator("#steps a").nth(step).inner_text()
        assert page.inner_text("#lecture h2").startswith(f"{step}. ")
        for button in page.locator("#lecture .tries button:not(.turn)").all():
            button.click()
            drawn(page)
            seen.append(button.inner_text())
        assert page.locator("figure:visible svg").count()
        if step < 6:
            page.get_by_role("button", name="Next →").click()
    assert len(seen) == 22
    page.get_by_role("button", name="← Back").click()
    assert page.inner_text("#lecture h2").startswith("5. ")
    page.go_back()  # the browser's own button
    assert page.inner_text("#lecture h2").startswith("6. ")


def test_the_network_learns_pauses_and_starts_again(page):
    page.select_option("#task", "order")
    page.select_option("#task", "adding")
    page.press("#gate-0", "ArrowLeft")
    assert "gates=-3.5%2C-6" in page.url
    page.click("#go")
    page.wait_for_function("playground.learning.last.count > 3000")
    page.click("#go")
    page.wait_for_function("!playground.learning.last.going")
    count = page.evaluate("playground.learning.last.count")
    errors = page.evaluate("playground.learning.last.curve.map((point) => point[1])")
    assert errors[-1] < errors[0] / 1.5
    assert f"{count:,}" in page.inner_text("#facts")
    assert all("<svg" in picture(page, name) for name in ("error", "gates", "states", "written", "drift"))
    page.click("#reset")
    page.wait_for_function("playground.learning.last.count === 0")


def test_numbers_are_saved_and_the_link_is_copied(page, context, server):
    with page.expect_download() as saved:
        page.click("#save")
    assert saved.value.suggested_filename == "longlag-elman.json"
    assert json.loads(Path(saved.value.path()).read_text()) == page.evaluate("playground.numbers()")
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#link")
    page.wait_for_function("document.getElementById('done').textContent !== ''")
    assert page.evaluate("navigator.clipboard.readText()") == page.url


# --------------------------------------------------------------------------------------------- typed cells


def use(page, text):
    page.fill("#text", text)
    with page.expect_response("**/cell"):
        page.click("#use")
    drawn(page)


def test_a_typed_cell_is_derived_by_the_library(page):
    use(page, TYPED)
    assert page.input_value("#cell") == "typed"
    told = page.evaluate("playground.numbers()")
    cell = cells.from_text(TYPED)
    layer, x = layer_of(cell, told)
    close([row["y_new"] for row in told["results"]], layer(x)[0].detach())
    page.reload()  # the address holds the text
    page.wait_for_function("document.getElementById('cell').value === 'typed'")
    drawn(page)
    assert page.evaluate("playground.numbers()") == told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TYPED.replace("tanh(a)", "torch.tanh(a)"), "cell mine: line 3: torch.tanh is not a function of the language"),
        ("import os", "from_text: text must be @cell"),
        (TYPED.replace("a z", "a q"), "mine"),
        ("@cell(", "from_text: text must be Python"),
    ],
)
def test_nonsense_shows_the_librarys_message_and_the_last_good_picture(page, text, message):
    use(page, TYPED)
    before = page.inner_html("#pictures"), page.url
    use(page, text)
    page.wait_for_function("document.getElementById('message').textContent !== ''")
    shown = page.inner_text("#message")
    with pytest.raises((ValueError, TypeError)) as refused:
        cells.from_text(text)
    assert message in shown
    assert shown == f"{refused.value}. The pictures show the last cell that worked."
    assert (page.inner_html("#pictures"), page.url) == before


def test_a_cell_that_leaves_the_numbers_keeps_the_last_pictures(page):
    before = picture(page, "flow")
    use(page, '@cell(gates="a", states="s")\ndef mine(a, s):\n    s = exp(exp(s + a) + 9)\n    return s, s')
    assert picture(page, "flow") == before
    assert "leave the range of numbers" in page.inner_text("#picture-flow .reading")


# ------------------------------------------------------------------------------------------- phone and file


def test_a_phone_shows_all_without_scrolling_sideways(browser, server):
    for scheme in ("light", "dark"):
        phone = browser.new_context(viewport={"width": 400, "height": 800}, has_touch=True, color_scheme=scheme)
        page = phone.new_page()
        for view in (SMALL, f"{SMALL}&cell=lstm&lecture=2", f"{SMALL}&lecture=6"):
            page.goto(f"{server.address}#{view}")
            drawn(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= 400
        phone.close()


def test_the_page_works_from_a_file(browser):
    """No server, no network: all but typed cells."""
    offline = browser.new_context(offline=True)
    page, said = offline.new_page(), []
    page.on("console", lambda message: said.append(message.text))
    page.goto(PAGE.as_uri())
    page.wait_for_selector("#picture-flow svg")
    assert page.is_disabled("#use")
    assert "longlag play" in page.inner_text("#typed-hint")
    page.wait_for_function("playground.learning.last")
    assert said == []
    offline.close()


def test_the_page_is_small_and_made_from_these_sources():
    text = PAGE.read_text(encoding="utf-8")
    assert len(text.encode()) < 1_000_000
    made = re.search(r'data-sources="(\w+)"', text)
    assert made
    assert made[1] == BUILDER.digest(), "python tools/playground.py builds the page again"
