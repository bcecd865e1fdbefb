"""The named cells and the files that define them; the files are loaded on first access."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from longlag.cells.continuous import cfc as cfc
    from longlag.cells.continuous import ctrnn as ctrnn
    from longlag.cells.elman import elman as elman
    from longlag.cells.elman import elman_relu as elman_relu
    from longlag.cells.elman import rnn97 as rnn97
    from longlag.cells.fastgrnn import fast_grnn as fast_grnn
    from longlag.cells.gru import gru as gru
    from longlag.cells.gru_d import gru_d as gru_d
    from longlag.cells.gru_d import gru_d_original as gru_d_original
    from longlag.cells.indrnn import ind_rnn as ind_rnn
    from longlag.cells.leaky import leaky as leaky
    from longlag.cells.local import activation_feedback as activation_feedback
    from longlag.cells.local import net_feedback as net_feedback
    from longlag.cells.local import static as static
    from longlag.cells.lru import lru as lru
    from longlag.cells.lstm import lstm as lstm
    from longlag.cells.lstm97 import memory_cell as memory_cell
    from longlag.cells.mgu import gru_original as gru_original
    from longlag.cells.mgu import mgu as mgu
    from longlag.cells.minimal import min_gru as min_gru
    from longlag.cells.minimal import min_lstm as min_lstm
    from longlag.cells.oscillators import antisymmetric as antisymmetric
    from longlag.cells.oscillators import co_rnn as co_rnn
    from longlag.cells.oscillators import lem as lem
    from longlag.cells.peephole import coupled_lstm as coupled_lstm
    from longlag.cells.peephole import peephole_lstm as peephole_lstm
    from longlag.cells.slstm import slstm as slstm
    from longlag.cells.spiking import adaptive_lif as adaptive_lif
    from longlag.cells.spiking import lif as lif
    from longlag.cells.spiking import snn_leaky as snn_leaky
    from longlag.cells.spiking import snn_synaptic as snn_synaptic

FILES = {  # file -> its cells
    "elman": "elman elman_relu rnn97",
    "lstm": "lstm",
    "gru": "gru",
    "leaky": "leaky",
    "local": "static net_feedback activation_feedback",
    "lstm97": "memory_cell",
    "peephole": "peephole_lstm coupled_lstm",
    "mgu": "gru_original mgu",
    "gru_d": "gru_d gru_d_original",
    "slstm": "slstm",
    "minimal": "min_gru min_lstm",
    "indrnn": "ind_rnn",
    "fastgrnn": "fast_grnn",
    "oscillators": "antisymmetric co_rnn lem",
    "continuous": "cfc ctrnn",
    "spiking": "lif snn_leaky snn_synaptic adaptive_lif",
    "lru": "lru",
}
HOME = {name: file for file, names in FILES.items() for name in names.split()}
