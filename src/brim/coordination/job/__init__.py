"""A job's workers: its members, the rounds that they enter, and the steps that they commit."""
