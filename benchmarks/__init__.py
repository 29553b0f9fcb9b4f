"""Benchmarks of this project: the serving layer next to others; those of an engine lie with it, in engines/.

To load a deployment of your own, run a tool made for that, such as NVIDIA's aiperf, against its `/v1`. The clients here
are only as large as the comparison needs, and small enough that on shared cores they are not the measurement.

::

    serve_layer/            command: contenders side by side; stages, cells, tables
        older.py            command: this tree next to an older checkout
        engine_process.py   command: cost of an engine in a separate process
    contenders/             servers that are compared, and the small Triton models of the others
    clients/                client process: requests of one run, HTTP and gRPC, what comes back, CPU time of a server

    golden.py               command: the demo's golden answers by the engine
    images/                 commands: prompts with images, by runner and by stage

    support/                an engine in this process, requests to it, checkpoints, conditions, options, tables
"""
