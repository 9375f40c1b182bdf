"""The job history on disk: SQLite, its schema, and what protects it against corruption and a full disk."""
