"""The verbs of the command `brim`: the composition root."""
