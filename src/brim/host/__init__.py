"""Host and kernel: accounts, processes, memory, clocks, and what others left there."""
