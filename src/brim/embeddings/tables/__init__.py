"""Tables of embeddings that are trained by rows.

The package knows where their rows lie, and how a step changes them.
"""
