"""The HTTP face: one router a noun."""
