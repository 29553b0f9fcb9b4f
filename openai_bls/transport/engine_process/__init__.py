"""Engines in separate processes: any of the registry, in any interpreter, environment or container.

`worker` is that process; `engine` is the `Engine` that stands for it in Triton's stub. Both speak the frames of
`transport.ipc` over one socket. The worker imports no more than an engine needs: msgspec, numpy and the engine's own
packages. This package may import engines, output, core and `transport.ipc`.
"""
