"""Text generation steps that every engine shares: chat templates and stop sequences."""
