"""Pure functions, snapshot in, decision out: the workers of each job, their nodes, and reasons."""
