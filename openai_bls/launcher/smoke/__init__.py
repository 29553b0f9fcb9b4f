"""Smoke test: every endpoint of a running server asked once, as a user would, and its answer checked.

| module | |
|---|---|
| `check.py` | a check, its outcome, and a run over a list of checks |
| `session.py` | the server under test: its clients, and its greedy answer to the one question |
| `openai_checks.py`, `triton_checks.py` | checks of /v1; checks of Triton's HTTP, metrics and gRPC ports |
| `registry_checks.py` | one check of /v1, and one of Triton's generate, for every endpoint of the API's registry |
| `command.py` | all checks against one server, and what is printed of them |

It needs the `openai` package, which the extra `smoke` brings. Imports launcher and api.
"""
