"""OpenAI's Responses API, built on chat completions.

`schema`, `items` and `conversation` read a request, `parsing` makes a chat completion of it, `writers` and
`output` turn what is generated into `events` or one of `responses`, and `store` keeps that.
"""
