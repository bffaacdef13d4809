"""transformers' Trainer with brim's loop inside; `brim.transformers` has its public names."""
