"""Sans-I/O state machines: event in, commands out. Pure: the roles perform what these decide."""
