"""The role that starts agents of jobs on one node, and that they end with."""
