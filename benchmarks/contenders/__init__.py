"""What `benchmarks.serve_layer` compares: small Triton models in official shapes, this project's own, and any URL.

::

    model_repository/   the models of the first three
    servers.py          how each contender is started, and what of it is driven
"""
