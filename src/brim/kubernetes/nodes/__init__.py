"""Nodes of Kubernetes: which a pod may be on, and what others keep there."""
