"""XGBoost whose trees are the same, bit for bit, for any number of workers."""

from brim.xgboost.rows import Files, Rows
from brim.xgboost.training import train

__all__ = ["Files", "Rows", "train"]
