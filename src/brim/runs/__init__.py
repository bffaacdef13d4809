"""Runs as their users see them: their requests, their places, their views.

`brim.Run` is here too.
"""
