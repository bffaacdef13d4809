"""A cluster's jobs: the plan for each, its outcome, and the nodes of its workers."""
