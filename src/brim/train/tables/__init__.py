"""Tables of embeddings that are trained by rows:
where their rows lie, and how a step changes them.
"""
