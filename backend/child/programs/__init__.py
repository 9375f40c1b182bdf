"""The programs that `backend/child` runs, one module each; see `PROGRAMS` in `backend/child/__main__.py`."""
