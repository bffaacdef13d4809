"""Checks of users' code: inexact training is found before it happens, with a remedy."""
