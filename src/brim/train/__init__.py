"""What a training script imports, and the worker that runs it: the only importer of torch beside models."""
