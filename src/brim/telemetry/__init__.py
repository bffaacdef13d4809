"""Reads and writes what a run says of itself: its events, steps and logs, and their one fold."""
