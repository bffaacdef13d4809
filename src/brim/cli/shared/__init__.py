"""Helpers that several verbs share."""
