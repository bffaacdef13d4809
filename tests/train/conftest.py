"""Torch computes with one thread here, as it does in a worker: tests run side by side anyway, and
threads that wait for each other take the processors from them.
"""

import torch

torch.set_num_threads(1)
