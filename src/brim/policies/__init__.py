"""Pure functions, snapshot in, decision out: who gets how many workers, where, and why."""
