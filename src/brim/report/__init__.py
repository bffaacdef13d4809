"""Draws pages, pictures and tables: of a run, of a cluster, of a simulation.

Pages are HTML that loads nothing: they open offline, from a mail or a folder, in ten years as today.
"""
