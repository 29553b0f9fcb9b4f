"""Images under torture: a model that sees, next to the others, and a host that answers badly."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from anyio.from_thread import start_blocking_portal

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from tests.fakes.image_host import ImageHost, drips, ok, redirect
from tests.pictures import HTML, picture
from tests.torture.schemas import ALICES_HOST_PORT, HOST_PORT, SEES

_ROOT = Path(__file__).parents[2]
_MAX_IMAGES = 2
ENVIRONMENT = {
    "OPENAI_BLS_IMAGE_URL_HOSTS": "*",
    "OPENAI_BLS_IMAGE_URL_PRIVATE_HOSTS": f"127.0.0.1:{HOST_PORT},127.0.0.1:{ALICES_HOST_PORT}",
    "OPENAI_BLS_IMAGE_TIMEOUT_S": "2",
}
"""Settings of the server."""


def with_sight(repository: Path, folder: Path) -> Path:
    """A copy of `repository` in `folder` that also has the vision demo, as the model `sees`."""
    copy = folder / "model_repository"
    shutil.copytree(repository, copy, symlinks=True)
    checkpoint = str(_ROOT / "demo" / "vision-checkpoint")
    build(
        BuildOptions(
            checkpoint, copy, engine="transformers", name=SEES, served_model_name=SEES, max_images=_MAX_IMAGES
        ),
        lambda _: None,
    )
    return copy


@contextlib.contextmanager
def image_host() -> Iterator[None]:
    """A host of images on `HOST_PORT`, in a thread."""
    running = ImageHost.running(port=HOST_PORT)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(running) as host:
        host.answers = {
            "/good": ok(picture(64, 64)),
            "/html": ok(HTML),
            "/slow": drips,
            "/metadata": redirect("http://169.254.169.254/latest/meta-data/"),
            "/circle": redirect("/circle"),
        }
        yield
