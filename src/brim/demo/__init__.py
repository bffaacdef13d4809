"""Demos of `brim demo`: each trains for real, and reports its findings.

Other packages add theirs by entry points of the group `brim.demos`, each a `Demo`.
"""

from brim.demo.findings import Demo, Findings

__all__ = ["Demo", "Findings"]
