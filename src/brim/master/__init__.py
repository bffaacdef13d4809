"""The role that owns what a job must agree on: membership, committed steps. It holds no tensors."""
