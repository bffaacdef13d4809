"""A training file whose loss fails in the middle of an epoch."""

from digits import dataset, metrics, model, optimizer  # noqa: F401
from torch.nn import functional

calls = 0


def loss(output, target):
    global calls
    calls += 1
    if calls > 5:
        raise ZeroDivisionError("the user's own mistake")
    return functional.cross_entropy(output, target)
