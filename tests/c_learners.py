"""The learners that are exported as C, by name; for tests/export/test_c.py and benchmarks/export.py."""

import torch
from helpers import LAYERS
from torch import nn

from longlag import learn


def learner(layer, rule, head=True, **options):
    """An `Online` with two outputs, on the road whose numbers define what is correct: nothing is compiled for it."""
    torch.manual_seed(3)
    width = layer.step(torch.zeros(1, 3, dtype=torch.float64))[0].shape[-1]
    readout = nn.Linear(width, 2, dtype=torch.float64) if head else None
    values = [*layer.parameters(), *(readout.parameters() if readout is not None else ())]
    online = learn.Online(layer, readout, learn.squared_error, rule, torch.optim.SGD(values, lr=0.05), **options)
    online.plan("python")
    return online


LEARNERS = {
    "unit": lambda: learner(LAYERS["local_activation"](size=2), learn.LocalForward(), head=False),
    "local": lambda: learner(LAYERS["local_net_forget"](num_layers=1), learn.LocalForward()),
    "network": lambda: learner(LAYERS["local_network_forget"](), learn.LocalForward(), head=False),
    "cross": lambda: learner(LAYERS["local_network_deep"](), learn.LocalForward(cross=True)),
    "lstm97": lambda: learner(LAYERS["lstm97"](), learn.TruncatedRTRL(), head=False, clip=0.3),
    "lstm97 full": lambda: learner(LAYERS["lstm97_features"](), learn.TruncatedRTRL(hidden="full")),
    "lstm": lambda: learner(LAYERS["lstm"](), learn.TruncatedRTRL()),
    "leaky": lambda: learner(LAYERS["leaky_learned"](), learn.TruncatedRTRL()),
    "rtrl": lambda: learner(LAYERS["local_net_forget"](), learn.RTRL()),
    "rtrl dense": lambda: learner(LAYERS["gru"](), learn.RTRL(), clip=0.5),
}
