"""Tensors in memory, a worker's part of it, and the generators that fill them."""
