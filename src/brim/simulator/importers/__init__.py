"""Readers of schedulers' logs and of public traces: one format a module.

Each adds the jobs of a file to a `Log`, a line at a time, and refuses other formats.
"""
