"""Options of `serve`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from openai_bls.core.settings import ENV_PREFIX
from openai_bls.launcher import jobs
from openai_bls.launcher.recovery.supervisor import DEFAULT_RESTARTS
from openai_bls.launcher.tritonserver.ports import Ports
from openai_bls.launcher.tritonserver.process import DEFAULT_EXIT_TIMEOUT_SECONDS


@dataclass(frozen=True)
class ServeOptions:
    """Options of `openai-bls serve`."""

    repository: Path = Path("model_repository")
    ports: Ports = field(default_factory=Ports)
    host: str = "127.0.0.1"
    """Address of /v1."""
    triton_host: str = ""
    """Address of Triton's own ports; empty is that of /v1."""
    metrics_host: str = ""
    """Address of Triton's metrics; empty is that of its other ports."""
    api_key: str | None = None
    """Key that requests must have; None is that of the environment."""
    log_file: Path | None = None
    exit_timeout: int = DEFAULT_EXIT_TIMEOUT_SECONDS
    restarts: int = DEFAULT_RESTARTS
    """Restarts within ten minutes, of the server and of each model; 0 for none."""
    verbose: bool = False
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    ssl_ca_certs: Path | None = None
    jobs: Namespace = field(default_factory=jobs.defaults)
    """Options about jobs of several ranks."""
    dry_run: bool = False
    further_repositories: Sequence[Path] = ()
    extra: Sequence[str] = ()

    @property
    def triton_address(self) -> str:
        """Address of Triton's own ports."""
        return self.triton_host or self.host

    @property
    def own_environment(self) -> dict[str, str]:
        """Variables of the server that the command line sets."""
        return {} if self.api_key is None else {f"{ENV_PREFIX}API_KEY": self.api_key}

    @property
    def metrics_address(self) -> str:
        """Address of Triton's metrics."""
        return self.metrics_host or self.triton_address
