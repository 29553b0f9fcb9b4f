"""Description of the API for programs and people: /openapi.json, /docs and the tables of docs/."""
