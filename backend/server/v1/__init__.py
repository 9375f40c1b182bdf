"""OpenAI's API on the same jobs: one file a route, all answers and refusals in OpenAI's shapes.

docs/openai.md lists what is honoured, what is accepted without effect, and what is refused by name.
"""
