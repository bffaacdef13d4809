"""Pods of jobs: what they are, when they are made and ended, and what becomes of them."""
