"""The dashboard: a process of the person who looks, which is a client of a scheduler.

It has that person's token and no other right; the scheduler keeps nothing for it.
"""
