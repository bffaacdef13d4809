"""The role that offers the devices of one host to a scheduler on another."""
