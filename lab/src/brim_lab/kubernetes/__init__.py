"""Real Kubernetes for tests: a control plane on loopback, and a cluster whose nodes are namespaces.

Everything is built from Go modules, once, and kept outside the checkout (`binaries.py`). It stands
in the laboratory because tests, benchmarks and experiments use it alike. Others' clusters serve as
well: tests take the kubeconfig that `BRIM_TEST_KUBECONFIG` names first.
"""
