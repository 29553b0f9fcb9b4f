"""OpenAI's Responses API, made of chat completions.

================  =====================================================================================
`schema`          the request's fields
`items`           input items: checked, and in the form in which a response lists them
`conversation`    items → chat messages
`parsing`         a body → a `Request` with its chat completion
`refusals`        errors with the names of this API's fields
`output`          the output items, growing event by event; streams and whole answers share them
`events`          server-sent events
`responses`       `response` objects
`writers`         what a generation writes into
`store`           responses that clients may come back to
`listing`         pages of input items
================  =====================================================================================
"""
