"""`python -m brim`: the command line."""

from __future__ import annotations

from brim.cli.__main__ import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
