"""Vector arithmetic in LLVM: activation functions and matrix products."""
