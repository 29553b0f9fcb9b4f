from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openai_bls.api.lora.endpoints import load, unload
from openai_bls.core.errors import ApiError, InvalidRequestError, ModelNotFoundError
from tests.unit.api.http_support import asked
from tests.unit.core_support import Bench, engine_info, request_context


def bench_in(root: Path) -> Bench:
    return Bench(engine_info(lora_names=("poet",), max_loras=2), lora_root=str(root))


async def test_an_adapter_is_loaded_and_unloaded(tmp_path: Path) -> None:
    bench = bench_in(tmp_path)
    answers = [
        await load(
            bench.service, request_context("load_lora_adapter"), {"lora_name": "clerk", "lora_path": "team/clerk"}
        ),
        await load(
            bench.service,
            request_context("load_lora_adapter"),
            {"lora_name": "judge", "lora_path": str(tmp_path / "judge"), "model": "openai_bls"},
        ),
        await unload(bench.service, request_context("unload_lora_adapter"), {"lora_name": "poet"}),
    ]
    assert [answer.message for answer in answers] == [
        "Success: LoRA adapter 'clerk' added successfully.",
        "Success: LoRA adapter 'judge' added successfully.",
        "Success: LoRA adapter 'poet' removed successfully.",
    ]
    assert bench.engine.lora_updates == [
        ("clerk", str(tmp_path / "team/clerk")),
        ("judge", str(tmp_path / "judge")),
        ("poet", ""),
    ]
    assert [record.endpoint for record in bench.records] == ["load_lora_adapter"] * 2 + ["unload_lora_adapter"]


NEW = {"lora_name": "clerk", "lora_path": "clerk"}


@pytest.mark.parametrize(
    ("what", "body", "param", "said"),
    [
        (load, NEW | {"lora_path": "../outside"}, "lora_path", "is not below the directory"),
        (load, NEW | {"lora_path": "/etc"}, "lora_path", "is not below the directory"),
        (load, NEW | {"lora_path": "link"}, "lora_path", "is not below the directory"),
        (load, NEW | {"lora_path": "."}, "lora_path", "is not below the directory"),
        (load, NEW | {"lora_path": "a\0b"}, "lora_path", "is not below the directory"),
        (load, NEW | {"lora_path": ""}, "lora_path", "Invalid value"),
        (load, NEW | {"lora_name": "poet"}, "lora_name", "'poet' is served already"),
        (load, NEW | {"lora_name": "openai_bls"}, "lora_name", "'openai_bls' is served already"),
        (load, NEW | {"model": "poet"}, "model", "'poet' is an adapter, not a base model"),
        (load, NEW | {"load_inplace": True}, "load_inplace", "Unknown parameter"),
        (unload, {"lora_name": "openai_bls"}, "lora_name", "is no adapter of that model"),
        (unload, {"lora_name": "poet", "model": "poet"}, "lora_name", "is no adapter of that model"),
    ],
)
async def test_refused(tmp_path: Path, what: Any, body: dict[str, Any], param: str, said: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    bench = bench_in(root)
    with pytest.raises(InvalidRequestError, match=said) as caught:
        await what(bench.service, request_context(), body)
    assert caught.value.param == param
    assert str(tmp_path) not in caught.value.message
    assert bench.engine.lora_updates == []


async def test_off_unless_there_is_a_directory_and_404_for_what_is_not_there(tmp_path: Path) -> None:
    bench = Bench(engine_info(lora_names=("poet",), max_loras=2))
    for what, body in ((load, NEW), (unload, {"lora_name": "poet"})):
        with pytest.raises(ApiError, match="the parameter 'lora_root' of openai_bls"):
            await what(bench.service, request_context(), body)
    with pytest.raises(ModelNotFoundError):
        await unload(bench_in(tmp_path).service, request_context(), {"lora_name": "nobody"})


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/reset_prefix_cache"])
def test_a_key_without_the_role_admin_changes_nothing_for_others(tmp_path: Path, path: str) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice: a role=admin\nbob: b\n", encoding="utf-8")
    body = {"lora_name": "poet"} if "unload" in path else NEW
    statuses = {}
    for key in "ab":
        bench = Bench(engine_info(lora_names=("poet",), max_loras=2), lora_root=str(tmp_path), api_keys_file=str(keys))
        answered = asked(bench, path, body, headers=[("authorization", f"Bearer {key}")])
        statuses[key] = answered.status
        if key == "b":
            assert answered.json()["error"]["code"] == "insufficient_permissions"
            assert not bench.engine.lora_updates
    assert statuses == {"a": 200, "b": 403}
