"""Torture of a served repository: generated requests on every door, faults, and streams whose text is known.

`python -m tests.torture` runs it (`make torture`). `schemas` and `cases` make the requests, `doors` sends them,
`verdicts` says what is wrong with an answer; `streams` asks what has one right answer, `clients` behaves badly,
`faults` breaks things; `server` is the launcher with all below it, `samples` watches its processes; `run` does all that
at the same time, `record` keeps what was seen, `report` makes a page of it.
"""
