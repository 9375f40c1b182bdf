"""What the engines for music, songs and stems share."""
