"""Micro-batches replayed as programs of the very calls that eager passes make."""
