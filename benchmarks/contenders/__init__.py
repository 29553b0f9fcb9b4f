"""What `benchmarks.serve_layer` compares: small Triton models in official shapes, and this project.

::

    model_repository/   the models of the others
    servers.py          how each contender is started, and what of it is driven
"""
