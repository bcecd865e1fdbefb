"""Data generators of the papers; every task has `sample(n, rng) -> Ragged`."""

from longlag.tasks.classic import Copy as Copy
from longlag.tasks.classic import DelayedXOR as DelayedXOR
from longlag.tasks.classic import Parity as Parity
from longlag.tasks.distractors import Distractors as Distractors
from longlag.tasks.distractors import LongLag as LongLag
from longlag.tasks.distractors import NoiseFree as NoiseFree
from longlag.tasks.order import TemporalOrder as TemporalOrder
from longlag.tasks.pairs import Adding as Adding
from longlag.tasks.pairs import Multiplication as Multiplication
from longlag.tasks.ragged import Ragged as Ragged
from longlag.tasks.ragged import Task as Task
from longlag.tasks.reber import EmbeddedReber as EmbeddedReber
from longlag.tasks.stream import dataset as dataset
from longlag.tasks.two_sequence import TwoSequence as TwoSequence
