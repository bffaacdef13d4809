"""Entries to a job: training files, own loops, and modules of Lightning."""
