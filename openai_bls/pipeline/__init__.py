"""Pipeline from a valid request to the events of its answer: prompts, sequences, generation, metrics.

Imports transport, engines, output and core. Its folders from top to bottom: `preparation`; `generation`; `metrics` and
`observation`; `lifecycle`; `admission` and `guards`; `models`; `task_models`. `service` is above them all.
"""
