"""Serving of a trained model.

Bundles of files, deltas to them, and the server that answers from them.
"""
