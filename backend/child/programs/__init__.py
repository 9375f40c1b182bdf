"""The programs that `backend/child` runs, one module each."""
