"""Checks of users' code: what cannot be trained exactly is found before it is, in words with a way out."""
