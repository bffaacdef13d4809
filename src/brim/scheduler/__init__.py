"""The role that decides who has how many workers: one per cluster.

It trains nothing and holds no tensors.
"""
