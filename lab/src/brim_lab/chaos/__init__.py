"""Breaks short jobs on purpose, in every way the language of faults has, and checks what they
promise.
"""
