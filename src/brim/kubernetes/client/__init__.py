"""A client of an API server of Kubernetes: it knows nothing of brim's jobs."""
