"""The pages as any client sees them: which files there are, under which headers, and to whom."""

from __future__ import annotations

import hashlib
import re
from typing import Any, cast

import pytest
from hypothesis import given, strategies

from openai_bls.api.app import create_app
from openai_bls.api.pages.static_files import FOLDER, MEDIA_TYPES, static_files
from openai_bls.transport.triton_http import TritonHttp
from tests.unit.api.connections import connected
from tests.unit.api.http_support import asked
from tests.unit.core_support import Answered, Bench

PLAYGROUND = "playground/index.html"
VENDOR = FOLDER / "vendor"
OURS = sorted(name for name in static_files() if not name.startswith("vendor/"))


def get(path: str, *headers: tuple[str, str], method: str = "GET", **settings: Any) -> Answered:
    return asked(Bench(**settings), path, headers=headers, method=method)


def text(name: str) -> str:
    return static_files()[name].body.decode()


def test_the_playground() -> None:
    answered = get("/")
    assert answered.status == 200
    assert answered.headers["content-type"] == "text/html; charset=utf-8"
    told = b'<meta name="max-audio-seconds" content="1500">'
    assert answered.body.count(told) == 1
    assert answered.body.replace(told, told.replace(b"1500", b"")) == (FOLDER / PLAYGROUND).read_bytes()
    assert told.replace(b"1500", b"60") in get("/", max_audio_seconds=60).body


@given(strategies.integers(1, 65535))
def test_the_playground_knows_tritons_port(port: int) -> None:
    bench = Bench()
    bench.service.front_end = TritonHttp("127.0.0.1", port, {})
    answered = asked(bench, "/", method="GET")
    named = f'<meta name="triton-http-port" content="{port}">'.encode()
    assert answered.body.count(named) == 1
    assert answered.body.replace(named, named.replace(b"%d" % port, b"")) == get("/").body
    assert answered.headers["etag"] != get("/").headers["etag"]


@pytest.mark.parametrize("path", ["/", *(f"/static/{name}" for name in static_files())])
def test_every_file_is_held_to_the_policy(path: str) -> None:
    answered = get(path)
    assert answered.status == 200
    directives = dict(
        part.strip().partition(" ")[::2] for part in answered.headers["content-security-policy"].split(";")
    )
    assert directives["default-src"] == "'none'"
    # Nothing but the server itself, and nothing within the document.
    assert {directives[f"{kind}-src"] for kind in ("script", "style", "font", "connect")} == {"'self'"}
    # Pictures that a visitor attaches, from the memory of the page.
    assert directives["img-src"] == "'self' blob:"
    # Sounds are decoded from what a request has brought, and have no address.
    assert "media-src" not in directives
    assert {directives[kind] for kind in ("base-uri", "form-action", "frame-ancestors")} == {"'none'"}
    assert directives["require-trusted-types-for"] == "'script'"
    assert answered.headers["x-content-type-options"] == "nosniff"
    assert answered.headers["referrer-policy"] == "no-referrer"
    assert answered.headers["cache-control"] == "no-cache"


def test_the_reference_is_held_to_it_too() -> None:
    answered = get("/docs")
    assert answered.status == 200
    assert answered.headers["content-security-policy"] == get("/").headers["content-security-policy"]
    linked = re.findall(r'(?:src|href)="([^"#]+)"', answered.body.decode())
    assert {"./", "openapi.json"} <= set(linked)
    assert {name.removeprefix("static/") for name in linked} - {"./", "openapi.json"} <= set(static_files())
    assert not re.search(r"<style|\bstyle=|<script(?![^>]* src=)", answered.body.decode())
    assert get("/docs", ("if-none-match", answered.headers["etag"])).status == 304


def test_a_file_that_the_browser_has() -> None:
    etag = get("/").headers["etag"]
    assert re.fullmatch(r'"[0-9a-f]{32}"', etag)
    assert etag != get("/static/base.css").headers["etag"]
    for known in (etag, f'"other", {etag}', f"W/{etag}", "*"):
        answered = get("/", ("if-none-match", known))
        assert (answered.status, answered.body) == (304, b"")
        assert answered.headers["etag"] == etag
        assert "content-security-policy" in answered.headers
    for other in ('"other"', "", etag.strip('"')):
        assert get("/", ("if-none-match", other)).status == 200


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "playground", "playground/", "Playground/index.html"),
        *("../static_files.py", "playground/../../routes.py", "..%2froutes.py", "/etc/passwd", "//etc/passwd"),
        *("playground\\index.html", "playground/index.html\0", "vendor/versions.txt", "vendor/marked/LICENSE"),
    ],
)
def test_nothing_else_is_served(name: str) -> None:
    answered = get(f"/static/{name}")
    assert answered.status == 404
    assert set(answered.json()) == {"error"}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *((b"GET", b"/static/%b/static_files.py" % up, 404) for up in (b"..", b"%2e%2e")),
        (b"GET", b"/../../etc/passwd", 404),
        (b"HEAD", b"/", 200),
    ],
)
async def test_paths_as_they_come_over_a_socket(method: bytes, path: bytes, status: int) -> None:
    async with connected() as (_, _, client):
        client.send(b"%b %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % (method, path))
        head, _, body = (await client.reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d" % status)
        assert (body == b"") is (method == b"HEAD")


def test_other_methods_are_refused() -> None:
    assert get("/", method="POST").status == 405
    assert get("/static/base.css", method="DELETE").status == 405


def test_pages_need_no_key_and_requests_do() -> None:
    assert get("/", api_key="k").status == 200
    assert get("/static/playground/main.js", api_key="k").status == 200
    assert get("/v1/models", api_key="k").status == 401


def test_pages_can_be_turned_off() -> None:
    for path in ("/", "/docs", "/static/base.css"):
        answered = get(path, http_ui=False)
        assert answered.status == 404
        assert answered.headers["content-type"] == "application/json"
    assert get("/v1/models", http_ui=False).status == 200
    assert get("/metrics", http_ui=False).status == 200


def test_pages_and_probes_are_not_observed() -> None:
    unobserved = create_app(Bench().service, cast(Any, None)).state.unobserved
    for path in ("/", "/static/base.css", "/docs", "/openapi.json", "/metrics", "/health/live", "/ping", "/load"):
        assert unobserved.match(path), path
    for path in ("/v1/models", "/v1/chat/completions", "/tokenize", "/docs/x", "/other"):
        assert not unobserved.match(path), path


@pytest.mark.parametrize("name", OURS)
def test_files_are_small_name_others_that_are_there_and_load_nothing_from_elsewhere(name: str) -> None:
    """Links are relative, so that the page works behind a proxy that puts a path before it."""
    first, *lines = text(name).splitlines()
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`)]*", text(name)))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    if name.endswith(".html"):
        assert not re.search(r"<style|\bstyle=|\bon\w+=|javascript:|<script(?![^>]* src=)", text(name))
        for linked in re.findall(r'(?:src|href)="([^"#]+)"', text(name)):
            assert linked == "docs" or linked.removeprefix("static/") in static_files()
    if name.endswith((".js", ".css")):
        assert re.match(r"(// |/\* )[A-Z].{20,}", first)
        assert len(lines) < 300
        # Text becomes HTML in DOMPurify alone.
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write\(|\beval\(|new Function", text(name)
        )
    if name.endswith(".js"):
        for imported in re.findall(r'(?:from|^import) "([^"]+)"', text(name), re.MULTILINE):
            target = (FOLDER / name).parent / imported
            assert target.resolve().relative_to(FOLDER).as_posix() in static_files()


def test_libraries_are_as_they_were_published() -> None:
    versions = (VENDOR / "versions.txt").read_text(encoding="utf-8")
    recorded = dict(re.findall(r"^  (\S+) ([0-9a-f]{128})$", versions, re.MULTILINE))
    files = [path for path in VENDOR.rglob("*") if path.suffix in MEDIA_TYPES]
    assert recorded == {
        path.relative_to(VENDOR).as_posix(): hashlib.sha512(path.read_bytes()).hexdigest() for path in files
    }
    for version, file in re.findall(r"^\S+ ([\d.]+) \S+ sha512-\S{86}==\n  (\S+) ", versions, re.MULTILINE):
        assert version in (VENDOR / file).read_text(encoding="utf-8")
        assert (VENDOR / file).with_name("LICENSE").is_file()
    assert len(re.findall(r" sha512-", versions)) == len({path.relative_to(VENDOR).parts[0] for path in files})


LATER = ("vendor/katex/", "vendor/highlight/", "playground/voice/")
"""What is loaded with the first formula, with the first code that has colours, and where a model hears or speaks."""


def test_the_page_is_light() -> None:
    """Bytes of a first visit, and of all there is."""
    sizes = {name: len(file.body) for name, file in static_files().items()}
    assert sum(size for name, size in sizes.items() if not name.startswith(LATER)) < 300_000
    assert sum(sizes.values()) < 1_000_000
    assert not re.search(r"katex|highlight", text(PLAYGROUND))
