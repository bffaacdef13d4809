"""A cluster's jobs: what is planned for each, what became of it, and the nodes that they are on."""
