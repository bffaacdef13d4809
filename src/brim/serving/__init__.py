"""Serving a trained model: bundles of files, what changes them, and the server that answers from
them.
"""
