"""Tests of Kubernetes. A package, so that imports of these do not find the client of that name."""
