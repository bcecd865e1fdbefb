"""A function of tensors as the list of torch operations that it performs."""

from longlag.engines.recording._private import Operation as Operation
from longlag.engines.recording._private import record as record
