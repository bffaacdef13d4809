"""The installation of an operator: its objects, and how they come to a server."""
