"""Reads and writes the records of a run: its events, steps and logs, and their one fold."""
