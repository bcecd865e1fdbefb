"""A recurrent matrix that is mostly zeros: `Recurrent.nonzeros` changes the speed, never the numbers."""

import pytest
import torch
from helpers import CELLS, gradients, randn, same, weighted_sum

import longlag as ll


def pair(cell, units, density, dtype=torch.float64, **options):
    """The same sparse layer on the CPU engine, told of its entries, and on the reference engine."""
    torch.manual_seed(0)
    ours = ll.Recurrent(CELLS[cell], 3, units, dtype=dtype, engine="cpu", **options)
    with torch.no_grad():
        for name, value in ours.named_parameters():
            if "weight_hh" in name:
                value *= torch.rand_like(value) < density
    wanted = ll.Recurrent(CELLS[cell], 3, units, dtype=dtype, engine="reference", **options)
    wanted.load_state_dict(ours.state_dict())
    ours.nonzeros = int(ours.get_parameter("weight_hh_l0").count_nonzero())
    return ours, wanted


def agree(ours, wanted, x, **call):
    results = []
    for layer in (ours, wanted):
        y, state = layer(x, **call)
        ends = state if isinstance(state, tuple) else (state,)
        results.append((y, ends, gradients(weighted_sum(y, *ends), layer)))
        with torch.no_grad():
            same(layer(x, **call)[0], y, "without gradients")
    same(results[0], results[1], "sparse")


@pytest.mark.parametrize("cell", ["leaky", "lstm", "gru", "user_everything"])
@pytest.mark.parametrize("batch", [1, 2])
def test_the_numbers_are_those_of_the_reference(cell, batch):
    ours, wanted = pair(cell, 19, 0.1)
    x = randn(40, batch, 3)
    agree(ours, wanted, x)
    reset = torch.rand(40, batch, generator=torch.Generator().manual_seed(1)) < 0.2
    agree(ours, wanted, x, reset=reset, lengths=torch.tensor([40, 23][:batch]))


def test_both_directions_and_single_precision():
    ours, wanted = pair("gru", 21, 0.15, torch.float32, bidirectional=True)
    agree(ours, wanted, randn(40, 1, 3, dtype=torch.float32))


@pytest.mark.parametrize("units", [19, 620])  # 620: two threads share the products
def test_a_matrix_with_more_entries_than_announced_is_computed_as_stored(units):
    ours, wanted = pair("leaky", units, 0.2)
    ours.nonzeros = ours.nonzeros * 4 // 5 if units > 19 else 3
    agree(ours, wanted, randn(34, 1, 3))


def test_threads_share_a_sparse_product():
    ours, wanted = pair("leaky", 820, 0.2)  # 134,000 entries
    x, threads = randn(34, 1, 3), torch.get_num_threads()
    found = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            y, _ = ours(x)
            found.append((y, gradients(weighted_sum(y), ours)["weight_hh_l0"]))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, two) for one, two in zip(*found))
    same(found[0][0], wanted(x)[0], "outputs")
