"""The sound files that jobs hand out: their kinds, what each says of itself, and how they are written."""
