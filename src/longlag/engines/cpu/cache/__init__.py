"""Machine code: compiled, stored on disk, loaded."""
