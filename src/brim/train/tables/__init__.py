"""Tables of embeddings that are trained by rows.

Where their rows lie, and how a step changes them.
"""
