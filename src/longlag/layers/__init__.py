"""Layers: modules that own weights and call an engine."""

from longlag.layers import schedules as schedules
from longlag.layers.chain import Chain as Chain
from longlag.layers.echo import EchoState as EchoState
from longlag.layers.gated import GRU as GRU
from longlag.layers.gated import LSTM as LSTM
from longlag.layers.gated import Elman as Elman
from longlag.layers.joined import Joined as Joined
from longlag.layers.jordan import Jordan as Jordan
from longlag.layers.layer import Layer as Layer
from longlag.layers.layer import check_layer as check_layer
from longlag.layers.linear import LinearStep as LinearStep
from longlag.layers.local import Leaky as Leaky
from longlag.layers.local import LocalFeedback as LocalFeedback
from longlag.layers.local_network import LocalFeedbackNetwork as LocalFeedbackNetwork
from longlag.layers.lstm97 import LSTM97 as LSTM97
from longlag.layers.recurrent import Recurrent as Recurrent
from longlag.layers.skip import Skip as Skip
from longlag.layers.state import State as State
from longlag.layers.state import StateSpec as StateSpec
from longlag.layers.step_function import StepFunction as StepFunction
from longlag.layers.step_layer import StepLayer as StepLayer
from longlag.layers.structures import Heads as Heads
from longlag.layers.structures import LowRank as LowRank
from longlag.layers.structures import Masked as Masked
from longlag.layers.structures import Signed as Signed
