"""The rule "bptt": back-propagation through the steps of a block, those since the last update (`Group.window`)."""

from longlag.engines.cpu.realtime.rtrl import clear_for as clear_for
from longlag.engines.cpu.realtime.rtrl import settle_for as settle_for
from longlag.engines.cpu.realtime.rtrl import sweep_for as sweep_for
