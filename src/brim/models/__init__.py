"""The model zoo: imports the public names of brim.train and torch, nothing else."""
