"""Learning in real time, compiled: a time loop that runs a network forward, forms gradients and updates the weights.

The engine knows no layers and no learning rules. A `network.Network` is plain data: groups of units, each with a cell,
what it reads, and the name of the rule that trains it. From the cell's equations `equations` prints a group's
functions; `group` (forward, errors back), the rule and `loop` are ordinary Python, compiled around them. The sizes of a
small network are constants of its kernel, those of a large one are read from the kernel's table (`words`).

- `layout`: where everything lies. Weights are packed source by source, (gate, tile, source, lane): a tile is one SIMD
  vector of units, and the last sources are 1 (biases). The sum of gradients and the optimiser's moments are parallel.
- `stream.Stream`: memory and kernels of a network for B samples; `stream.Chunk`: T steps. ``Stream.run(first, last)``.
- `update`: the optimisers, one kernel for all networks.

Another learning rule is a module of this package, named in `Group.rule` and in `rules.MEMORY`, with two functions that
return compiled pieces for group k of a `loop.Plan`; ``z = plan.sizes[k](table)`` are its sizes (`words.Sizes`), inside
the pieces:

- ``sweep_for(plan, k)`` -> ``sweep(table, v, scored)``, called once per step and active sample, after the errors of the
  step. In the sample's memory ``v.sample`` it finds the sources at ``z.source``, and rows of units at ``z.rows +
  plan.rows[k].at[name] * S``, S = tiles · lanes: ``"q/v"`` ∂q/∂v (a constant partial has no row), and, if ``scored``,
  ``"net g"`` the error of gate g's net input and ``"past q"`` that of q(t−1). It adds to ``v.gradient`` (laid out as
  the weights, the group at ``z.W`` and ``z.P``) and then advances what it keeps at ``z.E``. The new values become the
  past after it. `traces` is the example.
- ``clear_for(plan, k)`` -> ``clear(table, v, _)``, called where a sample is reset.
- if the rule puts gradients off until they are needed, ``settle_for``, made like ``clear_for``: called before updates.
  `rtrl` is the example: it keeps the last steps (`blocks`), from which kernels shared by all cells form the gradients
  (`influence`). `Stream.settle` does the same from Python.
"""
