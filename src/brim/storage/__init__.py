"""Files that must be whole or absent: the only durable bytes."""
