"""Keras 3 on its torch backend: networks, optimizers and metrics as a job needs them.

Keras is imported where a Keras object is at hand, never before.
"""
