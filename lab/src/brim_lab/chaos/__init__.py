"""Breaks short jobs on purpose and checks what brim promises of them.

Faults are of every kind that the language of faults has.
"""
