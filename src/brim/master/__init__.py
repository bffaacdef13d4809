"""The role that owns a job's agreements: membership, committed steps. It holds no tensors."""
