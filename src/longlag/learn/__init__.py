"""Learning rules: from errors dL/dy(t) to gradients, through time or in real time."""

from longlag.learn._chunk import StreamError as StreamError
from longlag.learn._comparison import RuleComparison as RuleComparison
from longlag.learn._comparison import compare as compare
from longlag.learn._rule import Rule as Rule
from longlag.learn._rule import Trace as Trace
from longlag.learn.bptt import BPTT as BPTT
from longlag.learn.bptt import TruncatedBPTT as TruncatedBPTT
from longlag.learn.local_forward import LocalForward as LocalForward
from longlag.learn.losses import cross_entropy as cross_entropy
from longlag.learn.losses import squared_error as squared_error
from longlag.learn.online import Online as Online
from longlag.learn.rflo import RFLO as RFLO
from longlag.learn.rtrl import RTRL as RTRL
from longlag.learn.snap import SnAp as SnAp
from longlag.learn.truncated import TruncatedRTRL as TruncatedRTRL
from longlag.learn.uoro import UORO as UORO
