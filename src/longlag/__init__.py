"""longlag: recurrent networks as equations, with exact gradients through time or in real time."""

from longlag import cells as cells
from longlag import estimators as estimators
from longlag import export as export
from longlag import flow as flow
from longlag import lab as lab
from longlag import layers as layers
from longlag import learn as learn
from longlag import rl as rl
from longlag import tasks as tasks
from longlag.cells import cell as cell
from longlag.layers import GRU as GRU
from longlag.layers import LSTM as LSTM
from longlag.layers import LSTM97 as LSTM97
from longlag.layers import Chain as Chain
from longlag.layers import EchoState as EchoState
from longlag.layers import Elman as Elman
from longlag.layers import Jordan as Jordan
from longlag.layers import Layer as Layer
from longlag.layers import Leaky as Leaky
from longlag.layers import LocalFeedback as LocalFeedback
from longlag.layers import LocalFeedbackNetwork as LocalFeedbackNetwork
from longlag.layers import Recurrent as Recurrent
from longlag.layers import Skip as Skip
from longlag.layers import schedules as schedules
from longlag.structured import CRF as CRF
from longlag.structured import Attention as Attention
from longlag.structured import Seq2Seq as Seq2Seq
from longlag.tagger import Tagger as Tagger

__version__ = "0.2.0"
