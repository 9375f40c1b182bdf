"""A job's life: request, admission, event log, store, files, execution and receipt."""
