"""Embeddings that are trained by rows, and the tables that hold them."""
