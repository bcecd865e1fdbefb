"""``torch.nn.utils.rnn.PackedSequence`` in and out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

if TYPE_CHECKING:
    from longlag.layers.layer import Layer
    from longlag.layers.state import State


def run_packed(
    layer: Layer, x: PackedSequence, state: State | None = None, **options: Any
) -> tuple[PackedSequence, State]:
    """Run a layer over packed sequences; outputs are packed likewise, states are in the order of the caller's batch."""
    for name in ("lengths", "reset"):
        if options.get(name) is not None:
            raise ValueError(f"{layer.class_name}: {name} must be None for a PackedSequence, which has its own lengths")
    padded, lengths = pad_packed_sequence(x, layer.batch_first)
    y, new = layer(padded, state, **options | {"lengths": lengths.to(padded.device)})
    if x.sorted_indices is not None:
        y = y.index_select(0 if layer.batch_first else 1, x.sorted_indices)
        lengths = lengths[x.sorted_indices.cpu()]
    data = pack_padded_sequence(y, lengths, layer.batch_first).data
    return PackedSequence(data, x.batch_sizes, x.sorted_indices, x.unsorted_indices), new
