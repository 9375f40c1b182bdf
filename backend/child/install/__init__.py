"""Installation of runtimes: uv, the package index, and the errors of uv."""
