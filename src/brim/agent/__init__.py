"""The role that starts and stops workers on one node and is the hub of their barriers."""
