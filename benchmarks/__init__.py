"""Benchmarks of this project: the serving layer next to others, and the embedded engine on a GPU.

To load a deployment of your own, run a tool made for that, such as NVIDIA's aiperf, against its `/v1`. The clients here
are only as large as the comparison needs, and small enough that on shared cores they are not the measurement.

::

    serve_layer/            command: contenders side by side; stages, cells, tables
        older.py            command: this tree next to an older checkout
        engine_process.py   command: cost of an engine in a separate process
    contenders/             servers that are compared, and the small Triton models of the others
    clients/                client process: requests of one run, HTTP and gRPC, what comes back, CPU time of a server

    gpu.py                  command: the embedded engine on GPUs, alone, behind /v1, with all that follows
    gpu_report.py           its results, held against their goals
    vllm_serve/             command: `vllm serve`, /v1 over the same vLLM, /v1 over the embedded engine, in turns
    mixed_load.py           command: the engine under random arrivals of mixed lengths
    builds.py               command: the engine in FP8, next to the checkpoint's data type
    build_report.py         what it measures of a build, and its tables
    experts.py              command: mixtures of experts by fused kernels and by transformers' code
    speculation.py          command: the engine with and without drafts
    kv_offload.py           command: vLLM's KV cache beyond the GPU
    golden.py               command: the demo's golden answers by the engine
    images/                 commands: prompts with images, by runner and by stage

    laptop.py               command: llama.cpp's own server and the engine over it, on a CPU

    support/                an engine in this process, requests to it, checkpoints, conditions, options, tables
"""
