"""The HTTP server: one router per resource, OpenAI compatibility, security, and the server process."""
