"""The laboratory of brim, which tests it and compares it with others.

It breaks brim on purpose, repeats published experiments, and replays others' schedulers beside
brim's own.

brim never imports this package. It is found by its entry points (`brim.user_code.plugins`).
"""
