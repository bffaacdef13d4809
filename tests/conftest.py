"""Hypothesis draws the same examples in every run.

`BRIM_HYPOTHESIS=thorough` draws many more, `BRIM_HYPOTHESIS=quick` a few.
"""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None, database=None, max_examples=50)
settings.register_profile("thorough", parent=settings.get_profile("ci"), max_examples=5_000)
settings.register_profile("quick", parent=settings.get_profile("ci"), max_examples=10)
settings.load_profile(os.environ.get("BRIM_HYPOTHESIS", "ci"))

# What the tests run, in processes of its own.
collect_ignore_glob = [
    "e2e/files/*",
    "e2e/doomed/*",
    "zoo/cases/*",
    "zoo/nursery.py",
    "zoo/pace.py",
]
