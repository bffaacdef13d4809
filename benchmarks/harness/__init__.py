"""The harness of all benchmarks: it starts, follows and ends a run of each side, and writes
figures.
"""
