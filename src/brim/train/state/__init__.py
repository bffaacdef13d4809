"""The state of a job: the part for newcomers and checkpoints, and its digests."""
