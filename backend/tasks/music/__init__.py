"""The built-in music model: a small folk-tune generator with a neural melody and rule-based backing.

Runs in children alone; only `controls` and what it needs is imported by the server too (standard library, no NumPy).
"""
