"""What every analysis can do with its numbers: a table and a picture, both written whole or not at all."""

import csv
import math

import helpers
import pytest
import torch

import longlag as ll
from longlag import flow, tasks


def make(name, **options):
    return helpers.LAYERS[name](engine="reference", **options)


def watched():
    layer = make("lstm")
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    with flow.watch(layer, every=1, budget=1.0) as result:
        for _ in range(3):
            layer.zero_grad()
            layer(helpers.randn(9, 2, 3))[0][-1].square().sum().backward()
            torch.nn.utils.clip_grad_norm_(layer.parameters(), 1e-3)
            optimizer.step()
    return result


X = helpers.randn(9, 2, 3)
RESULTS = {
    "error_flow": lambda: flow.error_flow(make("elman"), X),
    "probe": lambda: flow.error_flow(make("gru"), X, method="probe"),
    "spectrum": lambda: flow.spectrum(make("elman"), X),
    "credit": lambda: flow.gradient_by_lag(make("elman"), X, lambda y: y.square().sum(-1)),
    "forgetting": lambda: flow.forgetting(make("local_network_forget"), X),
    "not_forgetting": lambda: flow.forgetting(make("local_network"), X),
    "carousel": lambda: flow.carousel(make("lstm97"), X),
    "memory": lambda: flow.memory_weights(make("lstm"), X),
    "drift": lambda: flow.drift(
        ll.LSTM97(2, 1, output_size=1, engine="reference"), tasks.Multiplication(22), updates=2, batch=2
    ),
    "compare": lambda: flow.compare(
        {"Elman": flow.error_flow(make("elman"), X), "LSTM-97": flow.carousel(make("lstm97"), X)}
    ),
    "watch": watched,
}


@pytest.mark.parametrize("name", RESULTS)
def test_printed_in_one_line(name):
    text = repr(RESULTS[name]())
    assert "\n" not in text
    assert len(text) < 400
    if name == "spectrum":
        assert text == "Spectrum(name='Elman', times=Tensor(9,), radius=Tensor(9, 2), norm=Tensor(9, 2))"


@pytest.mark.parametrize("name", RESULTS)
def test_table_and_pictures(name, tmp_path):
    result = RESULTS[name]()
    table = result.to_csv(tmp_path / "deep" / "numbers.csv")
    with table.open() as file:
        header, *rows = csv.reader(file)
    columns = {k: v.tolist() if isinstance(v, torch.Tensor) else list(v) for k, v in result.columns().items()}
    assert header == list(columns)
    assert len(rows) == len(next(iter(columns.values()))) > 0
    for row, wanted in zip(rows, zip(*columns.values())):
        for text, value in zip(row, wanted):
            assert text == value if isinstance(value, str) else float(text) == value or math.isnan(value)
    for kind, head in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        picture = result.save(tmp_path / f"picture.{kind}")
        assert picture.read_bytes().startswith(head)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["deep", "picture.pdf", "picture.png", "picture.svg"]


def test_a_picture_is_the_same_file_every_time(tmp_path):
    result = RESULTS["compare"]()
    first, second = (result.save(tmp_path / f"{i}.svg").read_bytes() for i in range(2))
    assert first == second


def test_pictures_show_the_numbers():
    found = RESULTS["error_flow"]()
    (axes,) = found.plot().axes
    lines = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    helpers.same(torch.as_tensor(lines["norm (median, range)"]), found.norm.median(-1).values)
    helpers.same(torch.as_tensor(lines["bound ‖U‖^q"]), found.bound[:, 0])
    assert axes.get_xlabel() == "lag q (steps)"
    carousel = RESULTS["carousel"]()
    (axes,) = carousel.plot().axes
    assert bool((torch.as_tensor(axes.get_lines()[0].get_ydata()) == 1).all())
    left, _, *_ = RESULTS["credit"]().plot().axes
    credit = RESULTS["credit"]()
    image = torch.as_tensor(left.get_images()[0].get_array().filled(math.nan))
    helpers.same(image.t()[6, 4], credit.inputs.mean(-1)[6, 4])  # column: loss, row: earlier step
    assert bool(torch.isnan(image.t()[4, 6]))


def test_results_draw_on_given_axes():
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    figure = RESULTS["error_flow"]().plot(axes)
    assert figure is axes.get_figure()
    assert axes.get_lines()


def test_an_unknown_format_is_refused_and_a_failure_leaves_no_file(tmp_path):
    result = RESULTS["spectrum"]()
    with pytest.raises(ValueError, match=r"Spectrum.save: path must end in .png, .svg, .pdf, got 'x.jpg'"):
        result.save(tmp_path / "x.jpg")
    with pytest.raises(TypeError, match="unexpected keyword"):
        result.save(tmp_path / "x.png", colour="red")
    kept = tmp_path / "kept.csv"
    kept.write_text("before")
    broken = flow.Spectrum("x", torch.arange(3), torch.zeros(3, 1), torch.zeros(2, 1))
    with pytest.raises(ValueError, match="zip"):
        broken.to_csv(kept)
    assert kept.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["kept.csv"]
