"""Users' code: found, imported and kept, and its errors in its own words."""
