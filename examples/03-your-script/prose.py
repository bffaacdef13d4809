"""A text to learn words from: the Zen of Python, as `import this` has it, over and over."""

import codecs
import importlib.util
import re

import torch
from torch.utils.data import TensorDataset


def prose(length=12, repeat=4):
    """Windows of word numbers, each with the words that follow; and how many words there are."""
    source = importlib.util.find_spec("this").loader.get_source("this")
    text = codecs.decode(re.search('"""(.*?)"""', source, re.DOTALL)[1], "rot13")
    words = re.findall(r"[a-z']+|[.!]", text.lower()) * repeat
    known = sorted(set(words))
    numbers = torch.tensor([known.index(word) for word in words])
    windows = numbers.unfold(0, length + 1, length)
    return TensorDataset(windows[:, :-1], windows[:, 1:]), len(known)
