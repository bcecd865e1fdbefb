"""Compile-time constants of a kernel's network: sizes, functions, and the layout of lanes."""

from dataclasses import replace

import numpy as np
from llvmlite import ir
from numba import from_dtype, typeof, types
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    NativeValue,
    infer_getattr,
    lower_getattr_generic,
    models,
    register_model,
    typeof_impl,
    unbox,
)

from longlag.engines.cpu.online97.network import SQUASH, Network, lanes_for, output_lanes
from longlag.engines.cpu.simd.functions import intrinsic
from longlag.engines.cpu.simd.vector import Vector, rearranged


class NetworkType(types.Type):
    """Numba type of a network: kernels are specialised on its fields. Input and output sizes are not part of it."""

    def __init__(self, facts: Network) -> None:
        self.facts = facts
        self.element = from_dtype(np.dtype(facts.dtype))
        super().__init__(name=f"NetworkType({facts})")


register_model(NetworkType)(models.OpaqueModel)


@typeof_impl.register(Network)
def _type_of_network(network, context):
    return NetworkType(replace(network, input_size=1, output_size=output_lanes(network)))


@unbox(NetworkType)
def _unbox_network(kind, value, context):
    return NativeValue(context.context.get_dummy_value())


FACTS = {
    "output_gates": lambda n: n.output_gates,
    "recurrent": lambda n: n.recurrent,
    "input_to_output": lambda n: n.input_to_output,
    "linear_output": lambda n: n.output == "linear",
    "hidden_units": lambda n: n.hidden_units,
    "cells": lambda n: n.cells,
    "first_cell": lambda n: n.starts["cell"],
    "fed_back": lambda n: n.units * n.recurrent,
    "g": lambda n: SQUASH[n.g],
    "h": lambda n: SQUASH.get(n.h, (0.0, 0.0)),
    "h_is_identity": lambda n: n.h == "identity",
    "output_lanes": output_lanes,
}


@infer_getattr
class NetworkFacts(AttributeTemplate):
    """`network.cells` and the like are constants of the compiled code."""

    key = NetworkType

    def generic_resolve(self, typ, attr):
        return typeof(FACTS[attr](typ.facts))


@lower_getattr_generic(NetworkType)
def _lower_fact(context, builder, kind, value, name):
    fact = FACTS[name](kind.facts)
    return context.get_constant_generic(builder, typeof(fact), fact)


def zeros(lanes):
    """An intrinsic: a vector of lanes(n) zeros."""

    @intrinsic
    def zero(typing, network):
        kind = Vector(network.element, lanes(network.facts))

        def codegen(context, builder, signature, arguments):
            return ir.Constant(context.get_value_type(kind), None)

        return kind(network), codegen

    return zero


zero_units = zeros(lambda n: lanes_for(n.units))
zero_cells = zeros(lambda n: lanes_for(n.cells))
zero_traces = zeros(lambda n: 2 * lanes_for(n.cells))
zero_outputs = zeros(output_lanes)


def lane_map(table):
    """An intrinsic that moves lanes: lane l of its result is the sum of the lanes table(n)[l] of its argument."""

    @intrinsic
    def move(typing, network, x):
        sources = table(network.facts)

        def codegen(context, builder, signature, arguments):
            return rearranged(builder, arguments[1], sources)

        return Vector(x.element, len(sources))(network, x), codegen

    return move


def per_cell(unit):
    """Table from units to cells: cell c takes unit(n, c), padding nothing."""
    return lambda n: [[unit(n, c)] if c < n.cells else [] for c in range(lanes_for(n.cells))]


def to_units(**groups):
    """Table to units: number i of a group takes the lanes groups[group](n, i), every other unit nothing."""

    def table(n):
        counts = {"hid": n.hidden_units, "ig": n.blocks, "og": n.blocks * n.output_gates, "cell": n.cells}
        lanes = [[] for _ in range(lanes_for(n.units))]
        for group, sources in groups.items():
            for i in range(counts[group]):
                lanes[n.starts[group] + i] = sources(n, i)
        return lanes

    return table


def of_block(n, k):
    """The cells of block k."""
    return [k + j * n.blocks for j in range(n.block_size)]


input_gates = lane_map(per_cell(lambda n, c: n.starts["ig"] + c % n.blocks))
output_gates = lane_map(per_cell(lambda n, c: n.starts["og"] + c % n.blocks if n.output_gates else 0))
cells = lane_map(per_cell(lambda n, c: n.starts["cell"] + c))
at_hidden_units = lane_map(to_units(hid=lambda n, p: [p]))
at_output_gates = lane_map(to_units(og=of_block))
at_traced = lane_map(to_units(ig=of_block, cell=lambda n, c: [lanes_for(n.cells) + c]))
