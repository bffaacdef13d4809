"""Asynchronous training on one host: workers apply whole batches in turns, each computed on a
slightly older state.
"""
