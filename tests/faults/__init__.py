"""Children that crash, hang, flood or send wrong frames, over real pipes."""
