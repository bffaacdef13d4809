"""What the benchmarks share: how a run of each side is started, followed and ended, and how figures
are written.
"""
