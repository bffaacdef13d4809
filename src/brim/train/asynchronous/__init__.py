"""Asynchronous training on one host.

Workers apply whole batches in turns, each computed on a slightly older state.
"""
