"""Attacks: the key alice asks for as many pieces as it can, while the quiet key bob is looked at all the time.

`alice` is the attacker's client, in a process by itself; `wire`, `stored`, `sequences`, `grammars`, `images` and
`greeters` are what it does, and `catalog` lists it. `bob` is the other client. `siege` runs one attack after another,
and `judgement` says which of them cost bob too much.
"""
