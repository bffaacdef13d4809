"""Fixtures that all tests of Kubernetes share."""

from clusters import api_server, fake_cluster, namespace, node_cluster, real_kubeconfig

__all__ = ["api_server", "fake_cluster", "namespace", "node_cluster", "real_kubeconfig"]
