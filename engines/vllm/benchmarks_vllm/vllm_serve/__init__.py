"""The same vLLM behind its own `vllm serve` and behind this project, with the embedded engine next to both.

`python -m benchmarks_vllm.vllm_serve --vllm-python PYTHON --out OUT`. One checkpoint, one machine, one client; all
servers stay up and are asked in turns, load by load. Both vLLMs get the same engine arguments, and what their logs say
of their settings is compared.

::

    __main__.py         command: options, and the end that writes RESULTS.md
    session.py          the servers' starts, the rounds over all loads, results written after every measurement
    servers.py          how each of the three is started
    loads.py            streams in a closed loop, JSON, random arrivals
    death.py            a worker that is killed
    engine_settings.py  settings of vLLM's engine, from its log
    report.py           tables, held against the goals
"""
