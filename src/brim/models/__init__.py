"""The model zoo: plain torch modules, usable without brim."""

from brim.models.calibrated import Calibrated
from brim.models.dcn_v2 import DCNV2
from brim.models.deepfm import DeepFM
from brim.models.din import DIN
from brim.models.experts import PLE, MMoE
from brim.models.final_mlp import FinalMLP
from brim.models.small_cnn import SmallCNN
from brim.models.two_tower import TwoTower, in_batch_softmax
from brim.models.wide_deep import WideDeep
from brim.models.xdeepfm import XDeepFM

__all__ = [
    "DCNV2",
    "DIN",
    "PLE",
    "Calibrated",
    "DeepFM",
    "FinalMLP",
    "MMoE",
    "SmallCNN",
    "TwoTower",
    "WideDeep",
    "XDeepFM",
    "in_batch_softmax",
]
