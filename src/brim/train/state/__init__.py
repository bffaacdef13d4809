"""The state of a job: what is carried to newcomers and to checkpoints, and its digests."""
