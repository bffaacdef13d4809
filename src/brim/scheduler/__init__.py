"""The role that decides on the workers of each job: one per cluster.

It trains nothing and holds no tensors.
"""
