"""The laboratory of brim: breaks it on purpose, repeats published experiments, and replays others'
schedulers beside its own.

brim never imports this package. It is found by its entry points (`brim.plugins`).
"""
