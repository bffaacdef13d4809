"""A job's workers: who is in it, the rounds that they enter, and the steps that they commit."""
