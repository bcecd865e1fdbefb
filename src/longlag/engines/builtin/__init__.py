"""torch's own recurrent kernels as an engine."""
