"""Breaks short jobs on purpose and checks brim's promises of them.

Faults are of every kind that the language of faults has.
"""
