"""Benchmarks: they print what they measured, and no test asserts it."""
