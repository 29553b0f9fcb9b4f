"""One model per folder: six repositories of one model each, and each model where object storage would put it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import openai
import pytest
from tritonclient.grpc import InferenceServerClient

from openai_bls.launcher.recovery.abandoned_stubs import AbandonedStubs
from openai_bls.launcher.recovery.stub_watch import stubs
from openai_bls.launcher.testing import RunningServer, run_server
from openai_bls.triton_models.repository.render_configs import configure
from openai_bls.triton_models.tensors.models import MODELS
from tests.triton.conftest import ANSWERED, RAW
from tests.triton.triton_client import TritonError, generate
from tests.waiting import until

pytestmark = pytest.mark.triton

EXPLICIT = ["--model-control-mode=explicit"]
KEY = "a1"
# As Triton's file system for object storage hands a model over: its folder, copied to a place with a name of its own.
COPIED = """

import shutil
import tempfile

_initialize = TritonPythonModel.initialize


def _copied(self, args):
    place = tempfile.mkdtemp(prefix="folder", dir={folder!r})
    shutil.copytree(args["model_repository"], place, dirs_exist_ok=True)
    _initialize(self, {{**args, "model_repository": place}})


TritonPythonModel.initialize = _copied
"""


@pytest.fixture
def apart(repository: Path, tmp_path: Path) -> list[Path]:
    """A repository for each model, which is loaded as from object storage; a key is in openai_bls's config.pbtxt, and a
    setting that others share."""
    whole = tmp_path / "whole"
    shutil.copytree(repository, whole)
    (tmp_path / "keys").write_text(f"alice: {KEY}\n", encoding="utf-8")
    configure(whole, [f"openai_bls.api_keys_file={tmp_path / 'keys'}", "tensorrt_llm.exclude_input_in_output=false"])
    for name in MODELS:
        (tmp_path / f"of_{name}").mkdir()
        (whole / name).rename(tmp_path / f"of_{name}" / name)
    place = tmp_path / "local"
    place.mkdir()
    copied = COPIED.format(folder=str(place))
    for model in tmp_path.glob("of_*/*/1/model.py"):
        model.write_text(model.read_text(encoding="utf-8") + copied, encoding="utf-8")
    return [tmp_path / f"of_{name}" for name in MODELS]


def check(server: RunningServer, answer: str | None) -> None:
    """All of them answer, a chat with this text if one is given, and know what the others have in their folders."""
    with openai.OpenAI(base_url=server.openai_url, api_key=KEY, max_retries=0) as client:
        assert ANSWERED.messages is not None
        asked: Any = {"messages": ANSWERED.messages, "max_tokens": ANSWERED.tokens, "temperature": 0}
        chat: Any = client.chat.completions.create(model="openai_bls", **asked)
        assert answer in (None, chat.choices[0].message.content)
        assert chat.usage.completion_tokens == ANSWERED.tokens
    body = {"text_input": RAW[0].raw, "max_tokens": 8}
    for name in ("ensemble", "tensorrt_llm_bls"):
        with pytest.raises(TritonError, match="API key"):
            generate(server.http_url, name, body)
        # The prompt is in it: a setting of the engine's model.
        assert generate(server.http_url, name, {**body, "api_key": KEY})["text_output"].startswith(RAW[0].raw)


def flags(repositories: list[Path]) -> list[str]:
    return [f"--model-repository={path}" for path in repositories]


def test_six_repositories(apart: list[Path]) -> None:
    with run_server(apart[0], args=flags(apart[1:]), wait_openai=False) as server:
        until(lambda: openai_is_open(server))
        check(server, ANSWERED.answer)


def openai_is_open(server: RunningServer) -> bool:
    with openai.OpenAI(base_url=server.openai_url, api_key=KEY, max_retries=0) as client:
        try:
            return bool(client.models.list().data)
        except openai.APIError:
            return False


def orders() -> Iterator[tuple[str, ...]]:
    """One order and its reverse; an ensemble comes after its steps, as Triton wants it."""
    names = [name for name, model in MODELS.items() if not model.steps]
    yield (*names, "ensemble")
    yield (*reversed(names), "ensemble")


def load(server: RunningServer, control: InferenceServerClient, name: str) -> None:
    """Load a model, as `serve` does: a stub that tritonserver gives up on a busy machine ends, and the load is tried
    again."""
    abandoned = AbandonedStubs()
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            loading = pool.submit(control.load_model, name)
            while not wait([loading], timeout=1).done:
                abandoned.kill(server.pid, stubs(server.pid))
            if loading.exception() is None:
                return
    loading.result()


def is_empty(control: InferenceServerClient) -> bool:
    """True once every model has been unloaded: an order to unload does not wait for it."""
    index = control.get_model_repository_index(as_json=True)["models"]
    return all(model.get("reason") == "unloaded" for model in index if "state" in model)


def have_replaced(server: RunningServer) -> bool:
    """True once the models that the load of the ensemble loaded anew have taken the places of those before: requests in
    progress of an engine that is unloaded end with an error."""
    log = server.log_path.read_text(encoding="utf-8", errors="replace")
    loaded, unloaded = (re.findall(f"successfully {done} '([a-z_]+)'", log) for done in ("loaded", "unloaded"))
    return sorted(loaded) == sorted([*unloaded, *MODELS])


def test_loads_in_any_order(apart: list[Path]) -> None:
    """With an engine that loads at once, for each order loads it twice."""
    args = [*flags(apart[1:]), *EXPLICIT]
    with (
        run_server(apart[0], {"OPENAI_BLS_ENGINE": "null"}, args, wait_openai=False) as server,
        InferenceServerClient(server.grpc_url) as control,
    ):
        for order in orders():
            for name in order:
                load(server, control, name)
            until(lambda: have_replaced(server))
            until(lambda: openai_is_open(server))
            check(server, None)
            for name in reversed(order):
                control.unload_model(name)
            until(lambda: is_empty(control))
