"""Loggers: TensorBoard, MLflow, W&B or one of your own receives a run's records.

It gets each step once, despite deaths.

Law: nothing of a job waits for this package. It reads the files that the master writes, in a
process of its own.
"""

from brim.loggers.protocol import Entry, LoggedRun, Logger

__all__ = ["Entry", "LoggedRun", "Logger"]
