"""Reload of models, with a server that is a list of calls."""

from __future__ import annotations

from typing import Any

import pytest

from openai_bls.launcher.recovery import reload


class FakeClient:
    """A server in which a model ends at once, or never."""

    ends = True

    def __init__(self, url: str) -> None:
        self.calls: list[str] = []
        self.state = "READY"

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def get_model_repository_index(self, headers: Any, as_json: bool) -> dict[str, Any]:
        return {"models": [{"name": "m", "state": self.state}]}

    def unload_model(self, name: str, headers: Any) -> None:
        self.state = "UNAVAILABLE" if self.ends else "UNLOADING"

    def load_model(self, name: str, headers: Any) -> None:
        assert self.state != "READY", "it would do nothing"
        self.state = "READY"


@pytest.mark.parametrize(("ends", "note"), [(True, False), (False, True)])
def test_a_model_that_never_ends_is_loaded_again(monkeypatch: pytest.MonkeyPatch, ends: bool, note: bool) -> None:
    monkeypatch.setattr(reload, "InferenceServerClient", FakeClient)
    monkeypatch.setattr(reload, "UNLOAD_SECONDS", 0.0)
    monkeypatch.setattr(FakeClient, "ends", ends)
    lines: list[str] = []
    reload.reload_models("x", ["m"], lines.append)
    (line,) = lines
    assert line.startswith("m is loaded again (")
    assert ("still has requests" in line) is note
