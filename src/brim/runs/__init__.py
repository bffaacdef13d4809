"""Runs as their users see them: what may be asked for, where it goes, how it is watched.

`brim.Run` is here too.
"""
