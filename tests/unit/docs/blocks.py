"""Code blocks of the pages: what runs as it stands, and what a marker before a block says that it needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.unit.docs.pages import PAGES, ROOT, text

NEEDS = {
    "a checkpoint": "the files of a model",
    "an adapter": "a LoRA adapter for it",
    "a terminal of its own": "starts a server, and runs until it is stopped",
    "minutes": "runs for minutes",
    "a checkout": "make, in a clone",
    "the examples": "a server with the models of examples/: tests/triton/models/test_examples.py runs these",
    "a model that takes images": "a server whose model has `image` among its `input_modalities`",
    "speculative decoding": "a server whose engine has it on",
    "keys": "a server with API keys",
    "HTTPS": "a certificate and its key",
    "a batch file": "a file of requests",
    "a collector": "something that takes OpenTelemetry's traces",
    "the network": "packages, or files of the hub",
    "a GPU": "",
    "several GPUs": "",
    "several machines": "",
    "an engine's process": "an environment for the engine: tests/triton/engines/test_engine_process.py runs these",
    "vLLM": "its environment, by `openai-bls install-engine vllm`",
    "TensorRT-LLM": "an NGC image, or one that derives from it",
    "Docker": "",
    "Kubernetes": "a cluster",
}
"""What the marker `<!-- needs: a GPU and Docker -->` may name, and what that is where the name does not say it."""
RUN = ("bash", "python")
"""Languages of blocks that run, unless they are marked."""
MARKED = ("go", "java")
SHOWN = ("", "json", "text", "toml", "yaml")


class Block(NamedTuple):
    """One block of code, and the output that a block `text` after it shows."""

    page: str
    line: int
    language: str
    needs: tuple[str, ...]
    code: str
    output: str | None

    @property
    def name(self) -> str:
        """For pytest's output."""
        return f"{self.page}:{self.line}"


_BLOCK = re.compile(
    r"^(?:<!-- needs: (?P<needs>.*?) -->\n)?"
    r"```(?P<language>\w*)\n(?P<code>.*?)^```$(?:\n\n```text\n(?P<output>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)


def blocks(page: str) -> Iterator[Block]:
    """All of a page."""
    content = text(page)
    position = 0
    while found := _BLOCK.search(content, position):
        # What follows a block that runs is its output; after others it is a block by itself.
        runs = found["language"] in RUN and found["output"] is not None
        position = found.end() if runs else content.index("\n```", found.start("code") - 1) + 4
        needs = tuple((found["needs"] or "").split(" and ")) if found["needs"] else ()
        line = content.count("\n", 0, found.start("code"))
        yield Block(page, line, found["language"], needs, found["code"], found["output"] if runs else None)


_MAY_RUN = re.compile(
    r"curl |(?:openai-bls|python -m openai_bls) (?:completion|doctor|key|render|serve --dry-run)\b"
    r"|python build/smoke.py --url"
)


def may_run(block: Block) -> bool:
    """Whether a block needs nothing but the server, and changes nothing beside a copy of the model repository."""
    if block.language not in RUN or block.needs:
        return False
    lines = [line for line in block.code.splitlines() if re.match(r"\w", line)]
    return block.language == "python" or all(map(_MAY_RUN.match, lines))


def all_blocks() -> list[Block]:
    """Of all pages."""
    return [block for page in PAGES for block in blocks(page)]


def at(code: str, ports: dict[int, int]) -> str:
    """The code for a server on other ports than those of every day."""
    return re.sub(
        r"(localhost|127\.0\.0\.1):(800[012]|9000)\b", lambda found: f"127.0.0.1:{ports[int(found[2])]}", code
    )


def matches(expected: str, printed: str) -> bool:
    """Whether the output is what the page shows; a line `...` stands for any lines."""
    pattern = re.escape(expected.strip()).replace(r"\.\.\.", ".*")
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


CLIENTS = ROOT / "clients"


def client_files() -> list[Path]:
    """The programs of clients/."""
    return sorted(path for path in CLIENTS.iterdir() if path.suffix != ".md")
