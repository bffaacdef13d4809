"""Messages, codec, links, server and client: the only sockets."""
