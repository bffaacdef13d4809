"""Tensors in memory, what a worker has of it, and the generators that fill them."""
