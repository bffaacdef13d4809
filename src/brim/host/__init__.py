"""Host and kernel: accounts, processes, memory, clocks, and leftovers."""
