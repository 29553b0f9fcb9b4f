from __future__ import annotations

import errno
import logging
import os
from hashlib import sha256
from pathlib import Path

import pytest

from openai_bls.core.errors import AuthenticationError
from openai_bls.core.keys import api_keys, watched_files
from openai_bls.core.keys.api_keys import ApiKeys, ApiKeysError, bearer, new_key
from openai_bls.core.keys.key_limits import NO_LIMITS, KeyLimits


def hashed(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def refused(keys: ApiKeys, given: str) -> bool:
    with pytest.raises(AuthenticationError, match="do so") as error:
        keys.check(given, "do so")
    return given not in str(error.value) or not given


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"# clients\n\nalice: sha256:{hashed('a1')}\n alice :sha256:{hashed('a2').upper()} \nbob: b:1#x\n")
    return path


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_files, "CHECK_INTERVAL_S", 0.0)


def test_no_keys() -> None:
    keys = ApiKeys()
    assert not keys.required
    assert (keys.check("", "do so"), keys.check("any", "do so")) == ("", "")
    assert keys.is_admin("")


def test_the_one_key_has_no_name() -> None:
    keys = ApiKeys("kéy,1")
    assert keys.required
    assert keys.check("kéy,1", "do so") == ""
    assert all(refused(keys, given) for given in ("", "kéy", "kéy,1 ", "KÉY,1", "\ud800"))


def test_a_file_of_keys(file: Path) -> None:
    keys = ApiKeys("own", str(file))
    assert [keys.check(key, "do so") for key in ("a1", "a2", "b:1#x", "own")] == ["alice", "alice", "bob", ""]
    # A hash is no key.
    assert all(refused(keys, given) for given in ("", "b", hashed("a1"), f"sha256:{hashed('a1')}"))


def test_limits_belong_to_a_name(tmp_path: Path, impatient: None) -> None:
    file = tmp_path / "keys"
    file.write_text("a: a1 requests_per_minute=60\tweight=2.5\na: a2\nb: b1\nc: c1\nc: c2 max_waiting_tokens=9\n")
    keys = ApiKeys("own", str(file))
    assert [keys.check(key, "do so") for key in ("a1", "a2", "b1", "c1")] == ["a", "a", "b", "c"]
    assert keys.limits("a") == KeyLimits(requests_per_minute=60, weight=2.5)
    assert keys.limits("c") == KeyLimits(max_waiting_tokens=9)
    assert keys.limits("b") is keys.limits("") is NO_LIMITS
    file.write_text("a: a1 requests_per_minute=7\n")
    keys.check("a1", "do so")
    assert keys.limits("a") == KeyLimits(requests_per_minute=7)
    assert keys.limits("c") is NO_LIMITS


@pytest.mark.parametrize(
    ("text", "admins"),
    [
        ("a: a1\nb: b1 weight=2\n", ["a", "b", ""]),
        ("a: a1 role=admin\nb: b1\n", ["a", ""]),
        ("a: a1 role=admin\na: a2\nb: b1 role=user\n", ["a", ""]),
        ("a: a1\nb: b1 role=user\n", [""]),
    ],
)
def test_keys_of_a_file_that_gives_none_a_role_may_do_everything(tmp_path: Path, text: str, admins: list[str]) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    keys = ApiKeys("own", str(file))
    assert [name for name in ("a", "b", "") if keys.is_admin(name)] == admins


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: a1 60", "line 1 of .* '60' is not one <limit>=<value>"),
        ("a: a1 weight=1 weight=2", "'weight=2' is not one"),
        ("a: a1 requests_per_minute=0", "requests_per_minute"),
        ("a: a1 tokens_per_minute=1.5", "tokens_per_minute"),
        ("a: a1 weight=nan", "weight"),
        ("a: a1 weight=-1", "weight"),
        ("a: a1 speed=3", "speed"),
        ("a: a1 role=root", "role"),
        ("a: a1 weight=2\na: a2 weight=3", "line 2 .*limits"),
        ("", "holds no key"),
        ("# alice: key\n", "holds no key"),
        ("alice\n", "line 1 of"),
        ("alice:\n", "line 1 of"),
        ("alice: k\n: secret-key\n", "line 2 of"),
        ("al ice: k\n", "line 1 of"),
        ("alice: secret key\n", "line 1 of"),
        (f"{'a' * 65}: k\n", "line 1 of"),
        ("alice: sha256:12\n", "line 1 of"),
        (f"alice: sha256:{'g' * 64}\n", "line 1 of"),
        ("alice: k\nbob: k\n", "line 2 of .*'bob' .*'alice'"),
        ("alice: k\n" + "#" * api_keys.MAX_FILE_BYTES, "larger than"),
    ],
)
def test_a_broken_file_is_refused_and_nothing_of_it_is_told(file: Path, text: str, says: str) -> None:
    file.write_text(text)
    with pytest.raises(ApiKeysError, match=says) as error:
        ApiKeys(file=str(file))
    assert "secret" not in str(error.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ApiKeysError, match=os.strerror(errno.ENOENT)):
        ApiKeys(file=str(tmp_path / "none"))
    (tmp_path / "binary").write_bytes(b"a: \xff")
    with pytest.raises(ApiKeysError, match="UTF-8"):
        ApiKeys("own", str(tmp_path / "binary"))


def test_a_changed_file_counts_from_then_on(file: Path, impatient: None) -> None:
    keys = ApiKeys(file=str(file))
    # As Kubernetes and careful editors do it: another file in the place of this one.
    other = file.with_name("other")
    other.write_text("carol: c1\n")
    other.rename(file)
    assert keys.check("c1", "do so") == "carol"
    assert refused(keys, "a1")
    file.write_text("carol: c1\nalice: a1\n")
    assert keys.check("a1", "do so") == "alice"


@pytest.mark.parametrize("broken", ["alice: k k\n", "", None])
def test_a_broken_change_leaves_the_keys_and_says_so_once(
    file: Path, impatient: None, caplog: pytest.LogCaptureFixture, broken: str | None
) -> None:
    keys = ApiKeys(file=str(file))
    if broken is None:
        file.unlink()
    else:
        file.write_text(broken)
    with caplog.at_level(logging.INFO, logger="openai_bls"):
        assert [keys.check("a1", "do so") for _ in range(3)] == ["alice"] * 3
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert record.getMessage().startswith(f"the API keys stay as they are: {'line 1 of ' if broken else ''}{file}")
    file.write_text("carol: c1\n")
    assert keys.check("c1", "do so") == "carol"
    assert refused(keys, "a1")


def test_the_file_is_not_looked_at_with_every_request(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_files, "CHECK_INTERVAL_S", 3600.0)
    keys = ApiKeys(file=str(file))
    os.truncate(file, 0)
    assert keys.check("a1", "do so") == "alice"


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("Bearer k", "k"),
        ("bearer  k ", "k"),
        ("Bearer", ""),
        ("k", ""),
        ("Basic k", ""),
        ("", ""),
        ("Bearer a b", "a b"),
    ],
)
def test_bearer(header: str, key: str) -> None:
    assert bearer(header) == key


def test_a_new_key_works_by_its_line(tmp_path: Path) -> None:
    (first, line), (second, _) = new_key("team-1"), new_key("team-1")
    assert first != second
    assert first not in line
    (tmp_path / "keys").write_text(line)
    assert ApiKeys(file=str(tmp_path / "keys")).check(first, "do so") == "team-1"
    with pytest.raises(ApiKeysError, match="'two words'"):
        new_key("two words")


def test_how_long_a_name_is_missing(file: Path, impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    keys = ApiKeys("own", str(file))
    assert [keys.missing_s(name) for name in ("alice", "", "never")] == [None, None, 0.0]
    file.write_text("bob: b1\n")
    assert keys.missing_s("alice") == 0.0
    now = 103.0
    assert [keys.missing_s(name) for name in ("alice", "never")] == [3.0, 3.0]
    # Another key of the same name is one of the same client.
    file.write_text("bob: b1\nalice: a2\n")
    assert keys.missing_s("alice") is None
    file.write_text("bob: b1\n")
    assert keys.missing_s("alice") == 0.0
    assert ApiKeys().missing_s("alice") is None
    assert ApiKeys(file=str(file)).missing_s("") == 0.0
