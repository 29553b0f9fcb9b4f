"""Reload of models in a running server, over gRPC: model control over HTTP cuts off streams of other models."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from openai_bls.core.nearest import meant_or_known
from openai_bls.launcher.errors import LaunchError

UNLOAD_SECONDS = 60.0
"""Seconds that a model may take to let go of what runs in it."""
_POLL_SECONDS = 0.05


def reload_models(
    url: str, names: Sequence[str], report: Callable[[str], None], headers: Mapping[str, str] | None = None
) -> None:
    """Unload each model and load it again, and with it the ensembles that it is a step of.

    Load alone would do nothing to a model whose files are the same, not even if its process is dead. A model that does
    not end in time is loaded all the same: requests that a dead process had never end, and with them an ensemble's
    other steps.

    Args:
        url: host and port of the server's gRPC endpoint.
        names: models of its repository, of which those that are not loaded are only loaded.
        report: called with one line per model.
        headers: headers that the server requires of clients that load models.

    Raises:
        LaunchError: no server, one that takes no model control, an unknown model, or one that does not load; one
            sentence.
    """
    with InferenceServerClient(url) as client:
        try:
            there = _states(client, headers)
            for name in names:
                if name not in there:
                    known = meant_or_known(name, sorted(there))
                    raise LaunchError(f"there is no model {name!r} in the server; {known}")
            for name in names:
                begun = time.monotonic()
                ended = _unload(client, name, headers)
                client.load_model(name, headers=headers)
                note = "" if ended else "; the last one still has requests, and answers beside it until they end"
                report(f"{name} is loaded again ({time.monotonic() - begun:.1f} s){note}")
        except InferenceServerException as error:
            raise LaunchError(_sentence(url, error)) from None


def recover_model(url: str, name: str, headers: Mapping[str, str]) -> None:
    """Load a model again whose process has died.

    Its unload is not waited for: requests that it had on Triton's endpoints never end, and keep the old one for ever.

    Args:
        url: host and port of the server's gRPC endpoint.
        name: name of the model.
        headers: headers that the server requires of clients that load models.

    Raises:
        LaunchError: it does not load, or the server takes no model control; one sentence.
    """
    with InferenceServerClient(url) as client:
        try:
            client.unload_model(name, headers=headers)
            client.load_model(name, headers=headers)
        except InferenceServerException as error:
            raise LaunchError(_sentence(url, error)) from None


def _states(client: InferenceServerClient, headers: Mapping[str, str] | None) -> dict[str, str]:
    """Name of a model → its state: READY, UNAVAILABLE, LOADING or UNLOADING; empty if it was never loaded."""
    index = client.get_model_repository_index(headers=headers, as_json=True)
    return {model["name"]: model.get("state", "") for model in index.get("models", [])}


def _unload(client: InferenceServerClient, name: str, headers: Mapping[str, str] | None) -> bool:
    """Unload a model and wait until it is gone; False if that takes too long."""
    client.unload_model(name, headers=headers)
    deadline = time.monotonic() + UNLOAD_SECONDS
    while _states(client, headers).get(name) in ("READY", "UNLOADING"):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _sentence(url: str, error: InferenceServerException) -> str:
    message = (error.message() or "no reason given").splitlines()[0].rstrip(".")
    if "explicit model load / unload is not allowed" in message:
        return (
            "the server takes no model control: start it with `openai-bls serve`, or your own tritonserver"
            " with --model-control-mode=explicit '--load-model=*'"
        )
    if "protocol is restricted" in message:
        return "the server takes model control with its key alone: run this on the same machine, in the same container"
    if error.status() == "StatusCode.UNAVAILABLE" and "failed to connect" in message:
        return f"no server answers on {url} (--host and --grpc-port say where it is)"
    return f"the server says: {message}"
