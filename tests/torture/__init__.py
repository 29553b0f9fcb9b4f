"""Torture of a served repository: attacks, generated requests, faults, and streams whose text is known.

`python -m tests.torture` runs it (`make torture`). `attacks` come first: what one key may cost another. `schemas` and
`cases` make the requests, `doors` sends them, `verdicts` says what is wrong with an answer; `streams` asks what has one
right answer, `clients` behaves badly, `faults` breaks things; `server` is the launcher with all below it, `processes`
watches them; `run` does all that, `record` keeps what was seen, `report` makes a page of it.
"""
