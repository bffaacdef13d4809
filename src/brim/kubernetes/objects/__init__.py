"""Objects of brim on an API server: ElasticJobs, tenants, their schemas and status."""
