"""This host and its kernel: accounts, processes, memory, clocks, and what others left there."""
