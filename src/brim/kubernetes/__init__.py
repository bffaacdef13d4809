"""Kubernetes as a cluster: its nodes and pods, and the scheduler that decides about them."""
