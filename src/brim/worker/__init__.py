"""A worker's process: the template it is forked from, and the devices it gets."""
