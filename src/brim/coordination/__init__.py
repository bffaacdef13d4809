"""Sans-I/O state machines: event in, commands out. Pure: the roles carry them out."""
