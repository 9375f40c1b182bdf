"""The HTTP interface: one router for each resource, OpenAI compatibility, security, the server process."""
