"""Keras 3 on its torch backend: networks, optimizers and metrics as a job needs them.

Keras is imported where the user's code has imported it, never before.
"""
