"""See why gradients vanish, and where memory lives: Jacobians, bounds, forgetting, the carousel, training watched."""

from longlag.flow.bounds import conditions as conditions
from longlag.flow.bounds import path_products as path_products
from longlag.flow.cec import Carousel as Carousel
from longlag.flow.cec import carousel as carousel
from longlag.flow.comparing import Comparison as Comparison
from longlag.flow.comparing import compare as compare
from longlag.flow.credit import Credit as Credit
from longlag.flow.credit import gradient_by_lag as gradient_by_lag
from longlag.flow.drifting import Drift as Drift
from longlag.flow.drifting import drift as drift
from longlag.flow.error import ErrorFlow as ErrorFlow
from longlag.flow.error import Spectrum as Spectrum
from longlag.flow.error import error_flow as error_flow
from longlag.flow.error import spectrum as spectrum
from longlag.flow.forget import Forgetting as Forgetting
from longlag.flow.forget import forgetting as forgetting
from longlag.flow.memory import MemoryWeights as MemoryWeights
from longlag.flow.memory import memory_weights as memory_weights
from longlag.flow.watching import Watch as Watch
from longlag.flow.watching import watch as watch
