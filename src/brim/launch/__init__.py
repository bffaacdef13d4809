"""Workers that start any command, and start it again at each change: the restart level."""
