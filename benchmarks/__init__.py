"""Load generators: they drive a running server and say what each token costs.

::

    serve_layer.py          the command that compares: contenders side by side, goals, plot
    stages.py, bench.py     its stages, and one contender's server
    longprompt.py           what long prompts do to other streams
    cells.py, goals.py      what it found, and what was wanted
    summary.py, plot.py     its tables, JSON and plot
    contenders/             who is compared, and the small Triton models of the others

    load.py, run.py         the commands that drive a running server, and one of this project's own
    driver.py               client processes, one measurement
    probe.py                what a target's streams look like, and how long its prompts are
    supply.py               the requests of one run
    client_http.py          server-sent events over keep-alive connections
    client_grpc.py          Triton's gRPC streams, on http2.py
    target.py, events.py    what is sent, what comes back
    features.py             the command that checks the embedded engine's features and prices them, with no server
    feature_cases.py        what it asks for
    feature_checks.py       what it makes of the answers
    feature_costs.py        what it measures
    asking.py               requests to an engine in this process

    stats.py                numbers
    cpu.py, memory.py       of a server's processes
    report.py, machine.py   tables, JSON, RESULTS.md
    options.py              what several commands take
"""
