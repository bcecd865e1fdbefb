"""Ground rules of every test: reproducible, one thread, no memory read before it is written."""

import gc

import torch
from hypothesis import settings

torch.set_num_threads(1)  # the runner already uses every core
torch.use_deterministic_algorithms(True)  # and fills what torch.empty returns with NaN

# The same examples at every run; a slow machine is not a failure; no files left in the tree.
settings.register_profile("longlag", derandomize=True, deadline=None, database=None)
settings.load_profile("longlag")


def pytest_runtest_setup(item):
    torch.manual_seed(0)  # what a layer draws does not depend on which tests ran before


def pytest_collection_finish():
    gc.freeze()  # the garbage collector no longer walks through every imported module: a sixth of the suite's time


def pytest_unconfigure():
    gc.unfreeze()
