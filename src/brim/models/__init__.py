"""The model zoo: plain torch modules, usable without brim."""

from brim.models.deepfm import DeepFM
from brim.models.small_cnn import SmallCNN
from brim.models.two_tower import TwoTower, in_batch_softmax
from brim.models.wide_deep import WideDeep
from brim.models.xdeepfm import XDeepFM

__all__ = ["DeepFM", "SmallCNN", "TwoTower", "WideDeep", "XDeepFM", "in_batch_softmax"]
