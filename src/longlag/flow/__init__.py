"""See why gradients vanish, and where memory lives: Jacobians, bounds, forgetting, the carousel, training watched."""

from longlag.flow._carousel import Carousel as Carousel
from longlag.flow._carousel import carousel as carousel
from longlag.flow._compare import Comparison as Comparison
from longlag.flow._compare import compare as compare
from longlag.flow._conditions import Conditions as Conditions
from longlag.flow._conditions import conditions as conditions
from longlag.flow._credit import Credit as Credit
from longlag.flow._credit import gradient_by_lag as gradient_by_lag
from longlag.flow._drift import Drift as Drift
from longlag.flow._drift import drift as drift
from longlag.flow._error_flow import ErrorFlow as ErrorFlow
from longlag.flow._error_flow import error_flow as error_flow
from longlag.flow._forgetting import Forgetting as Forgetting
from longlag.flow._forgetting import forgetting as forgetting
from longlag.flow._memory_weights import MemoryWeights as MemoryWeights
from longlag.flow._memory_weights import memory_weights as memory_weights
from longlag.flow._paths import net_errors as net_errors
from longlag.flow._paths import path_products as path_products
from longlag.flow._spectrum import Spectrum as Spectrum
from longlag.flow._spectrum import spectrum as spectrum
from longlag.flow._watch import TrainingMonitor as TrainingMonitor
from longlag.flow._watch import watch as watch
from longlag.results import Result as Result

credit = gradient_by_lag  # the name of the command
