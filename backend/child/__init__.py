"""Child processes: the programs that run in them, the protocol, and the handle that the server holds."""
