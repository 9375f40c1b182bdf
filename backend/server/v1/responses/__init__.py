"""OpenAI's Responses API: items instead of messages, typed events, and stored responses that can be continued.

A response is a job; its id is `resp_` and the id of the job. What the request of the job does not hold, such as the
instructions, is in its metadata.
"""
