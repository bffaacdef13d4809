"""Nodes of Kubernetes: those a pod may be on, and the pods of others there."""
