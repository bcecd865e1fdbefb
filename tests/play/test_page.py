"""The playground in a real Chromium: its controls work, nonsense does no harm, its console stays empty."""

import json
import re
from pathlib import Path

import pytest
from play.visit import BUILDER, SMALL, TYPED, close, drawn, layer_of, picture, pictures, visit

from longlag import cells
from longlag.play import PAGE

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


def test_every_picture_can_be_read_without_seeing_it(page):
    """A name for screen readers, and a sentence that says what the picture shows."""
    visit(page, f"{SMALL}&cell=lstm")
    page.wait_for_function("playground.learning.last")
    for figure in page.locator("figure[id]").all():
        assert figure.locator(".reading").inner_text().endswith(".")
        pictures = figure.locator("svg[role=img][aria-label]")
        assert pictures.count() == min(1, figure.locator(".plot svg").count())
    assert page.locator("svg[role=img][aria-label]").count() == 9  # all but the two that show learning


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
    """Type a cell and wait for its pictures or a message."""
    page.fill("#text", text)
    page.click("#use")
    page.wait_for_function(
        "(text) => document.getElementById('message').textContent || playground.state().typed === text", arg=text
    )
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
