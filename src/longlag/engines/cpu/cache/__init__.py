"""Machine code: compiled, kept on disk, loaded."""
