"""Programs that a person starts: the command line, the launcher, the doctor and the benchmarks."""
