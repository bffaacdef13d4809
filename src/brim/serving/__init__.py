"""Serving of a trained model.

Bundles of files, what changes them, and the server that answers from them.
"""
