"""Images under torture: a model that sees, next to the others, and a host that answers badly."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from tests.fakes.image_host import ImageHost, drips, ok, redirect
from tests.pictures import HTML, picture
from tests.torture.schemas import HOST_PORT, SEES

_ROOT = Path(__file__).parents[2]
_MAX_IMAGES = 2
_START_SECONDS = 10.0
ENVIRONMENT = {
    "OPENAI_BLS_IMAGE_URL_HOSTS": "*",
    "OPENAI_BLS_IMAGE_URL_PRIVATE_HOSTS": f"127.0.0.1:{HOST_PORT}",
    "OPENAI_BLS_IMAGE_TIMEOUT_S": "2",
}
"""Settings of the server."""


def with_sight(repository: Path, folder: Path) -> Path:
    """A copy of `repository` in `folder` that also has the vision demo, as the model `sees`."""
    copy = folder / "model_repository"
    shutil.copytree(repository, copy, symlinks=True)
    checkpoint = str(_ROOT / "demo" / "vision-checkpoint")
    build(BuildOptions(checkpoint, copy, name=SEES, served_model_name=SEES, max_images=_MAX_IMAGES), lambda _: None)
    return copy


class Host:
    """A host of images on `HOST_PORT`, in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    def __enter__(self) -> Host:
        self._thread.start()
        assert self._up.wait(_START_SECONDS), f"port {HOST_PORT} is taken"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        async with ImageHost.running(port=HOST_PORT) as host:
            host.answers = {
                "/good": ok(picture()),
                "/html": ok(HTML),
                "/slow": drips,
                "/metadata": redirect("http://169.254.169.254/latest/meta-data/"),
                "/circle": redirect("/circle"),
            }
            self._up.set()
            await self._stop.wait()
