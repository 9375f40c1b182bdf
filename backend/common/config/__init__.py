"""Configuration. Only the server half imports this package: it needs pydantic."""
