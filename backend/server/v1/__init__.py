"""OpenAI-compatible routes on top of the same jobs, one file per route. All responses and errors have OpenAI's shapes.

docs/openai.md lists the keys that are supported, accepted without effect, and refused.
"""
