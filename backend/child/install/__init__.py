"""How a runtime is installed: uv, the package index, and what its errors mean."""
