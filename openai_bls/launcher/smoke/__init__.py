"""Smoke test: every endpoint of a running server asked once, as a user would, and its answer looked at.

| module | |
|---|---|
| `outcome.py` | a check, how it can end, and running a list of them |
| `client.py` | HTTP and server-sent events with the standard library |
| `session.py` | what the checks share: where the server is, and its greedy answer to the one question |
| `openai_checks.py`, `api_checks.py` | the checks of /v1: OpenAI's chat and completions; the other endpoints |
| `registry_checks.py` | one check per endpoint of `api.registry`, on /v1 and on Triton |
| `triton_checks.py` | the checks of Triton's HTTP, metrics and gRPC ports |
| `command.py` | the command line, `build/smoke.py` |

It needs nothing beyond the package's own dependencies; the gRPC check also needs `tritonclient[grpc]`, and says so
where that is missing.
"""
