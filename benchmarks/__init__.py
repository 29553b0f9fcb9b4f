"""Load generators: they drive a running server and say what each token costs.

::

    load.py, run.py         the two commands
    driver.py               client processes, one measurement
    probe.py                what a target's streams look like, and how long its prompts are
    client_http.py          server-sent events over keep-alive connections
    client_grpc.py          Triton's gRPC streams
    target.py, events.py    what is sent, what comes back
    stats.py, cpu.py        numbers
    report.py, machine.py   tables, JSON, RESULTS.md
"""
