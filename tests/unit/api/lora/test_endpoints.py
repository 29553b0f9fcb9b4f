from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.api.http_support import asked, refused
from tests.unit.core_support import Bench, engine_info

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
NEW = {"lora_name": "clerk", "lora_path": "clerk"}


def bench_in(root: Path | str, **settings: Any) -> Bench:
    return Bench(engine_info(lora_names=("poet",), max_loras=2), lora_root=str(root), **settings)


def test_an_adapter_is_loaded_and_unloaded(tmp_path: Path) -> None:
    bench = bench_in(tmp_path)
    judge = {"lora_name": "judge", "lora_path": str(tmp_path / "judge"), "model": "openai_bls"}
    for path, body in ((LOAD, {**NEW, "lora_path": "team/clerk"}), (LOAD, judge), (UNLOAD, {"lora_name": "poet"})):
        answered = asked(bench, path, body)
        assert answered.status == 200
        assert f"'{body['lora_name']}'" in answered.json()["message"]
    assert bench.engine.lora_updates == [
        ("clerk", str(tmp_path / "team/clerk")),
        ("judge", str(tmp_path / "judge")),
        ("poet", ""),
    ]
    assert [record.endpoint for record in bench.records] == ["load_lora_adapter"] * 2 + ["unload_lora_adapter"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        *(
            (LOAD, {**NEW, "lora_path": path}, "lora_path")
            for path in ("../outside", "/etc", "link", ".", "a\0b", "", "leak")
        ),
        (LOAD, {**NEW, "lora_name": "poet"}, "lora_name"),
        (LOAD, {**NEW, "lora_name": "openai_bls"}, "lora_name"),
        (LOAD, {**NEW, "model": "poet"}, "model"),
        (LOAD, {**NEW, "load_inplace": True}, "load_inplace"),
        (UNLOAD, {"lora_name": "openai_bls"}, "lora_name"),
        (UNLOAD, {"lora_name": "poet", "model": "poet"}, "lora_name"),
    ],
)
def test_refused(tmp_path: Path, path: str, body: dict[str, Any], param: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    (root / "leak").mkdir()
    (tmp_path / "secret").touch()
    (root / "leak/adapter_model.safetensors").symlink_to(tmp_path / "secret")
    bench = bench_in(root)
    answered = asked(bench, path, body)
    assert (answered.status, answered.json()["error"]["param"]) == (400, param)
    assert str(tmp_path) not in answered.body.decode()
    assert bench.engine.lora_updates == []


def test_links_to_files_below_the_directory_are_followed(tmp_path: Path) -> None:
    """The hub's cache has the files of all commits in one folder."""
    for name in ("blobs", "clerk"):
        (tmp_path / name).mkdir()
    (tmp_path / "blobs/1").touch()
    (tmp_path / "clerk/adapter_model.safetensors").symlink_to("../blobs/1")
    assert asked(bench_in(tmp_path), LOAD, NEW).status == 200


def test_off_unless_there_is_a_directory_and_404_for_what_is_not_there(tmp_path: Path) -> None:
    for path, body in ((LOAD, NEW), (UNLOAD, {"lora_name": "poet"})):
        assert refused(bench_in(""), path, body)[0] == 400
    assert refused(bench_in(tmp_path), UNLOAD, {"lora_name": "nobody"})[0] == 404


@pytest.mark.parametrize("path", [LOAD, UNLOAD, "/reset_prefix_cache"])
def test_a_key_without_the_role_admin_changes_nothing_for_others(tmp_path: Path, path: str) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice: a role=admin\nbob: b\n", encoding="utf-8")
    body = {"lora_name": "poet"} if path == UNLOAD else NEW
    for key, status in (("a", 200), ("b", 403)):
        bench = bench_in(tmp_path, api_keys_file=str(keys))
        answered = asked(bench, path, body, headers=[("authorization", f"Bearer {key}")])
        assert answered.status == status
        if key == "b":
            assert answered.json()["error"]["code"] == "insufficient_permissions"
            assert not bench.engine.lora_updates
