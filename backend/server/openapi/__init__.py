"""The description of the API: OpenAPI, the page at /docs, and the shapes that tests and the page share."""
