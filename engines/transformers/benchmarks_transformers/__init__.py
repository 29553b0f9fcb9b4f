"""Benchmarks of the embedded engine, on GPUs and on CPUs; `benchmarks` has what they share with others.

::

    gpu.py              command: the embedded engine on GPUs, alone, behind /v1, with all that follows
    gpu_report.py       its results, held against their goals
    mixed_load.py       command: the engine under random arrivals of mixed lengths
    builds.py           command: the engine in FP8, next to the checkpoint's data type
    build_report.py     what it measures of a build, and its tables
    experts.py          command: mixtures of experts by fused kernels and by transformers' code
    speculation.py      command: the engine with and without drafts
"""
