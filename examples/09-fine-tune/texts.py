"""Texts that come with Python, as characters: its reference manual, and the Zen of Python."""

import codecs
import importlib.util
import re
from pydoc_data.topics import topics

import torch

LETTERS = "\n !\"#%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`abcdefghijklmnopqrstuvwxyz{|}~"
LENGTH = 64


def numbers(text):
    """The number of each character; 0 for those that are not in LETTERS."""
    return [LETTERS.find(letter) + 1 for letter in text]


def windows(source, stride):
    """Overlapping windows of a text, each with itself as labels, as causal models want it."""
    ids = torch.tensor(numbers(source)).unfold(0, LENGTH, stride)
    return [{"input_ids": window, "labels": window} for window in ids]


def manual(characters=100_000):
    """Pages of Python's reference manual."""
    pages = "\n".join(topics[name] for name in sorted(topics))
    return re.sub(" +", " ", pages)[:characters]


def zen():
    """The Zen of Python, as `import this` has it."""
    source = importlib.util.find_spec("this").loader.get_source("this")
    return codecs.decode(re.search('"""(.*?)"""', source, re.DOTALL)[1], "rot13")
