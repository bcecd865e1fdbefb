"""Structured prediction: the linear-chain CRF, attention, and encoder-decoder networks."""

from longlag.structured.attention import Attention as Attention
from longlag.structured.crf import CRF as CRF
from longlag.structured.schemes import Constraints as Constraints
from longlag.structured.schemes import constraints_from as constraints_from
from longlag.structured.search import Decoded as Decoded
from longlag.structured.seq2seq import Seq2Seq as Seq2Seq
