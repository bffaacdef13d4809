"""The dashboard: a process of its viewer, which is a client of a scheduler.

It has that person's token and no other right; the scheduler keeps nothing for it.
"""
