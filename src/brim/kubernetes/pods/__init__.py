"""Pods of jobs: their shapes, their starts and ends, and their fates."""
