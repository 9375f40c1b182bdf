"""Programs that the benchmarks compare with or measure against. The service does not import them."""
