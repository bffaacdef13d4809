"""A cluster on a virtual clock: modelled progress, the real policies."""
