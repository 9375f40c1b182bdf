"""Children that crash, hang, lie and flood, speaking the real wire over real pipes."""
