"""The program inside a child process, started by any environment's Python, and the wire it speaks."""
