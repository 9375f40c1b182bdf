"""The API description: OpenAPI, the page at /docs, and the schemas that tests and the page share."""
