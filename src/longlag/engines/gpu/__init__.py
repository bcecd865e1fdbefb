"""The GPU engine: Triton kernels printed from a cell's equations. Triton is imported only when a kernel is built."""
