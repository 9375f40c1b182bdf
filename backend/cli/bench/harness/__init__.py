"""Baselines and load generators of the benchmarks. The service does not import them."""
