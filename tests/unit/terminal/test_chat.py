"""`chat`: one question, the commands, and a session on a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import ssl
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_bls.commands import main as cli
from openai_bls.launcher.errors import LaunchError
from openai_bls.terminal.answer import Answer, Asker
from openai_bls.terminal.chat import Chat, history_path
from openai_bls.terminal.connection import Connection, refusal
from openai_bls.terminal.conversation import Conversation
from tests.certificates import Authority
from tests.pictures import data_uri, picture
from tests.unit.terminal.support import FakeServer

TOOLS = [{"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}}]
BRACKETED_PASTE = b"\x1b[?2004h"
"""What a terminal is told when the chat waits for a line."""
CALL = {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "get_time", "arguments": "{}"}}]}


def ask(fake: FakeServer, monkeypatch: pytest.MonkeyPatch, *words: str, said: str = "Hi\n") -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(said))
    return cli.main(["chat", "--url", fake.url, *words])


def speak_tls(fake: FakeServer, authority: Authority, *, asks_for_certificates: bool = False) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue())
    if asks_for_certificates:
        context.load_verify_locations(authority.file)
        context.verify_mode = ssl.CERT_REQUIRED
    fake.socket = context.wrap_socket(fake.socket, server_side=True)


@pytest.fixture
def chat(fake: FakeServer) -> Iterator[Chat]:
    server = Connection(fake.url, "", 10)
    asker = Asker(server)
    yield Chat(server, asker, "small", Conversation(), {"temperature": 0.5})
    asker.close()


def test_one_question(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fake.key = "right"
    (tmp_path / "key").write_text("right\n")
    fake.deltas.insert(0, {"reasoning_content": "Let me see."})
    words = ["--system", "Be kind.", "--temperature", "0", "--api-key-file", str(tmp_path / "key")]
    assert ask(fake, monkeypatch, *words) == 0
    assert capsys.readouterr().out == "Hello **you**\n"
    (body,) = fake.asked
    assert (body["model"], body["temperature"]) == ("small", 0)
    assert body["messages"] == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("words", "key", "said"),
    [
        (["--model", "other"], "", "has no model 'other'; it serves small, large"),
        ([], "right", "wants a key"),
        (["--url", "http://127.0.0.1:9/v1"], "", "no server answers at http://127.0.0.1:9/v1"),
        (["--api-key-file", "/no/such"], "", "the key in /no/such cannot be read"),
        (["--tools", "/no/such"], "", "/no/such cannot be read"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    fake: FakeServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    key: str,
    said: str,
) -> None:
    fake.key = key
    assert ask(fake, monkeypatch, *words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("speaks_tls", "said"), [(True, "is not trusted here ([SSL: CERTIFICATE_VERIFY_FAILED]"), (False, "broke: [SSL")]
)
def test_https_that_fails(
    fake: FakeServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    speaks_tls: bool,
    said: str,
) -> None:
    if speaks_tls:
        speak_tls(fake, Authority(tmp_path))
    assert ask(fake, monkeypatch, "--url", fake.url.replace("http:", "https:")) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("shown", [True, False])
def test_a_client_certificate(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, shown: bool
) -> None:
    authority = Authority(tmp_path)
    speak_tls(fake, authority, asks_for_certificates=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    certificate, key = map(str, authority.issue("client"))
    words = ["--url", fake.url.replace("http:", "https:")]
    words += ["--client-certfile", certificate, "--client-keyfile", key] if shown else []
    assert ask(fake, monkeypatch, *words) == (0 if shown else 2)
    assert ("Hello" in capsys.readouterr().out) == shown


def test_a_client_certificate_that_cannot_be_used(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    certificate, _ = Authority(tmp_path).issue()
    for words, said in (
        (["--client-keyfile", "k"], "--client-keyfile needs --client-certfile"),
        (["--client-certfile", str(certificate)], f"no key of it, in PEM form: {certificate}: "),
        (["--client-certfile", "/none"], "No such file"),
    ):
        assert ask(fake, monkeypatch, *words) == 2
        error = capsys.readouterr().err
        assert said in error
        assert len(error.splitlines()) == 1


def test_a_client_certificate_is_no_key() -> None:
    error = {"message": "A client certificate is missing.", "code": "client_certificate_required"}
    said = refusal(Connection("https://x/v1", "", 1), 401, {"error": error})
    assert said == "the server answers 401: A client certificate is missing."


def test_an_error_leaves_no_question_behind(fake: FakeServer, chat: Chat, capsys: pytest.CaptureFixture[str]) -> None:
    fake.refuses = 503
    assert chat.take("Hi")
    assert "the server answers 503: it is too much" in capsys.readouterr().out
    assert chat.conversation.messages == []


def test_half_a_call_is_no_call(fake: FakeServer, chat: Chat, capsys: pytest.CaptureFixture[str]) -> None:
    fake.deltas = [{"content": "Half"}, CALL]
    fake.breaks_off = True
    chat.take("What time is it?")
    assert "broke off" in capsys.readouterr().out
    assert chat.conversation.turns[1:] == [{"role": "assistant", "content": "Half"}]


def test_a_home_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "openai_bls").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(LaunchError, match="set XDG_STATE_HOME"):
        history_path()


def test_commands(fake: FakeServer, chat: Chat, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved, page = tmp_path / "chat.json", tmp_path / "chat.md"
    for line in ("/system Be kind.", "Hi", "/retry", f"/save {saved}", f"/save {page}", "/model large", "/clear"):
        assert chat.take(line)
    assert [len(body["messages"]) for body in fake.asked] == [2, 2]
    assert chat.conversation.messages == [{"role": "system", "content": "Be kind."}]
    assert page.read_text() == "## System\n\nBe kind.\n\n## User\n\nHi\n\n## Assistant\n\nHello **you**\n"
    assert chat.take("/system -")
    assert chat.take(f"/load {saved}")
    assert json.loads(saved.read_text()) == {"model": "small", "messages": chat.conversation.messages}
    assert [message["role"] for message in chat.conversation.messages] == ["system", "user", "assistant"]
    assert chat.take("And you?")
    assert (fake.asked[-1]["model"], len(fake.asked[-1]["messages"])) == ("large", 4)
    capsys.readouterr()
    for line in ("/no", "/save", "/load /no/such", "/model other", "/help"):
        assert chat.take(line)
    said = capsys.readouterr().out
    for piece in ("there is no command /no", "a file's name", "/no/such cannot be read", "has no model 'other'"):
        assert piece in said
    assert not chat.take("/quit")


def test_images(fake: FakeServer, chat: Chat, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    image, page = tmp_path / "a picture.png", tmp_path / "chat.md"
    image.write_bytes(picture())
    for line in (
        f"/image {image}",
        "/image -",
        f"/image {image}",
        f"/image {image}",
        "What?",
        "And now?",
        f"/save {page}",
    ):
        assert chat.take(line)
    part = {"type": "image_url", "image_url": {"url": data_uri(picture())}}
    assert fake.asked[0]["messages"][0]["content"] == [part, part, {"type": "text", "text": "What?"}]
    assert fake.asked[1]["messages"][2]["content"] == "And now?"
    assert page.read_text().startswith("## User\n\n*(an image)*\n\n*(an image)*\n\nWhat?\n")
    capsys.readouterr()
    (tmp_path / "page.html").write_text("<html>")
    for line in ("/image /no/such", f"/image {tmp_path / 'page.html'}", "/image", "/model large", f"/image {image}"):
        assert chat.take(line)
    said = " ".join(capsys.readouterr().out.split())
    for piece in ("/no/such cannot be read", "is no PNG, JPEG, WebP", "a file's name", "model 'large' takes text only"):
        assert piece in said
    assert chat.images == []


def test_tools_are_carried_out_by_the_user(fake: FakeServer, chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    fake.deltas = [CALL]
    assert chat.take(f"/tools {tmp_path / 'tools.json'}")

    def result(name: str) -> str:
        fake.deltas = [{"content": "It is noon."}]
        return f"{name} says 12:00"

    chat.read_result = result
    assert chat.take("What time is it?")
    assert fake.asked[0]["tools"] == TOOLS
    assert fake.asked[1]["messages"][1:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "get_time says 12:00"},
    ]
    assert chat.conversation.messages[-1] == {"role": "assistant", "content": "It is noon."}


@pytest.mark.parametrize("text", ["{", "[1]", '{"messages": [{"role": "cook"}]}'])
def test_a_file_that_is_no_conversation(text: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text(text)
    with pytest.raises(LaunchError, match=r"is no (JSON|conversation)"):
        Conversation().load(path)


def test_the_summary_of_an_answer() -> None:
    answer = Answer(tokens=11, first_s=0.5, total_s=1.5, finish_reason="length")
    assert answer.summary() == "11 tokens, 10.0 tokens/s, first token after 0.50 s, cut off at the limit of tokens"


def test_a_session_on_a_terminal(fake: FakeServer, tmp_path: Path) -> None:
    """Ctrl-C stops the answer and not the program, Ctrl-D leaves; what was typed is kept."""
    fake.hold = threading.Event()
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(XDG_STATE_HOME=str(tmp_path), TERM="xterm", PROMPT_TOOLKIT_NO_CPR="1")
        os.execv(sys.executable, [sys.executable, "-m", "openai_bls", "chat", "--url", fake.url])
    seen = b""
    try:
        # Before it is ready.
        os.write(terminal, b"Hi\r")
        while BRACKETED_PASTE not in seen:
            seen += os.read(terminal, 4096)
        assert fake.holding.wait(20)
        while b"you" not in seen.partition(b"Hello")[2]:
            seen += os.read(terminal, 4096)
        os.kill(pid, signal.SIGINT)
        while b"stopped" not in seen:
            seen += os.read(terminal, 4096)
        fake.hold.set()
        while BRACKETED_PASTE not in seen.partition(b"stopped")[2]:
            seen += os.read(terminal, 4096)
        os.write(terminal, b"Again\r")
        while BRACKETED_PASTE not in seen.partition(b"tokens/s")[2]:
            seen += os.read(terminal, 4096)
        os.write(terminal, b"\x04")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        pid = 0
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)
    history = (tmp_path / "openai_bls" / "chat_history").read_text().splitlines()
    assert [line for line in history if line.startswith("+")] == ["+Hi", "+Again"]
