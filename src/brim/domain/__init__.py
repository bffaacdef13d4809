"""The glossary as types: frozen values and their arithmetic.

Pure: no I/O, no clock, no hidden randomness.
"""
