"""The loop around one server that `serve` runs: its log, its readiness, its end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from openai_bls.launcher import checks, progress
from openai_bls.launcher.console import Console, fail
from openai_bls.launcher.logs import DEPENDS, LoadWatcher, LogFollower, is_request, worth_showing
from openai_bls.launcher.readiness import expected_models, not_ready, served_models, serves_openai
from openai_bls.launcher.recovery.abandoned_stubs import AbandonedStubs
from openai_bls.launcher.recovery.stub_watch import StubWatch, stubs
from openai_bls.launcher.serving.examples import KEY_VARIABLE, examples
from openai_bls.launcher.serving.exposure import settings_of
from openai_bls.launcher.serving.options import ServeOptions
from openai_bls.launcher.serving.plan import Start
from openai_bls.launcher.tritonserver.command import flag_values
from openai_bls.launcher.tritonserver.loading import EXIT_FLAG
from openai_bls.launcher.tritonserver.process import ServerProcess
from openai_bls.pipeline.metrics.restarts import RestartCounts
from openai_bls.triton_models.repository.engines import has_keys

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_SECONDS = 0.1
"""Seconds between two looks at the server."""
_REMIND_SECONDS = 15.0
"""Seconds without news after which the first reminder comes; each further one takes twice as long."""
_LOOK_SECONDS = 1.0


class Foreground:
    """The loop around one server: read its log, ask whether it is ready, pass stop requests on."""

    def __init__(
        self,
        options: ServeOptions,
        start: Start,
        console: Console,
        process: ServerProcess,
        stops: Callable[[], int],
        log: LogFollower,
        counts: RestartCounts | None,
        *,
        again: bool,
    ) -> None:
        job = start.job
        self._options = options
        self._environment = start.environment
        self._counts = counts
        self._again = again
        self._watches = job is None and flag_values(start.command, "--model-control-mode")[-1:] == ["explicit"]
        self._watch: StubWatch | None = None
        self._console = console
        self._process = process
        self._stops = stops
        self._names = expected_models(options.repository, options.extra, options.further_repositories)
        stays = flag_values(start.command, EXIT_FLAG)[-1:] == ["false"]
        self._groups = checks.models_by_engine(self._names) if stays else []
        """Models of each engine, any of which may fail in a server that stays."""
        self._openai = serves_openai(self._names, options.ports)
        self._log = log
        self._watcher = LoadWatcher()
        self._job = job
        self._job_log = job.log() if job is not None else None
        self.ready = False
        self.failed = False
        """True if the server has ended with an error and without a request to stop."""
        self._hopeless = False
        """True if a model has failed to load that the others cannot be served without, in a server that stays."""
        self._gave_up = False
        """True if the server has given up the process of a loading model, whose end it would have waited for without
        limit."""
        self._abandoned = AbandonedStubs()
        self._looked = 0.0
        self._stopping = 0
        self._last_news = console.elapsed
        self._remind_after = _REMIND_SECONDS
        self._bar = progress.Bar("loading", 0)

    def run(self) -> None:
        """Follow the server to its end."""
        self._console.step(f"loading {', '.join(self._names)}")
        with progress.bar("loading", len(self._names), "models") as self._bar:
            self._follow()

    def _follow(self) -> None:
        while True:
            # The exit code is read first, so that the log is complete when it is there.
            code = self._process.poll()
            self._read_log()
            if code is not None:
                self._stop_watching()
                self._ended(code)
                return
            self._pass_stops_on()
            if not self.ready and not self._stopping and not self._hopeless:
                self._look_for_readiness()
                self._look_for_abandoned_stubs()
            time.sleep(POLL_SECONDS)

    @property
    def served(self) -> bool:
        """Whether the server has been ready. Rank 0 of a job is ready although another rank's model fails to load."""
        return self.ready and not (self._job is not None and self._watcher.failed)

    @property
    def starved(self) -> bool:
        """Whether the load has failed for want of CPU time."""
        return not self.served and (self._gave_up or self._watcher.lock_timed_out)

    def _read_log(self) -> None:
        for line in self._log.lines():
            news = self._watcher.feed(line)
            if self._job_log is not None:
                self._job_log.feed(line)
            shown = worth_showing(line, stopping=self._stopping > 0) and not self._watcher.in_usage
            if self._options.verbose or shown:
                # Of requests as it is: other programs read that as JSON.
                self._console.line(line if is_request(line) else f"    {line}")
            if news and not self.ready and not self._stopping:
                self._news(news)

    def _news(self, text: str) -> None:
        self._console.step(text)
        self._last_news = self._console.elapsed
        self._bar.reach(len(self._watcher.loaded))

    def _look_for_readiness(self) -> None:
        options = self._options
        failed = self._failed_to_load()
        names = [name for name in self._names if name not in failed]
        missing = not_ready(options.triton_address, options.ports, names, openai=self._openai, openai_host=options.host)
        if self._is_hopeless(failed) and "tritonserver" not in missing:
            self._hopeless = True
            self._process.drain()
        elif not missing:
            for name in sorted(failed):
                self._console.step(f"warning: {name} is not served: {self._watcher.failed[name]}")
            self.ready = True
            self._bar.close()
            if self._counts is not None and self._watches:
                self._watch = StubWatch(
                    self._process.pid,
                    (options.triton_address, options.ports.http),
                    (options.host, options.ports.openai, options.ports.tls) if self._openai else None,
                    options.restarts,
                    self._console.step,
                    self._counts.add,
                )
            self._announce()
        elif self._console.elapsed - self._last_news > self._remind_after:
            self._remind_after *= 2
            waiting, step = self._watcher.waiting or missing, self._watcher.engine_step
            self._news(f"still waiting for {', '.join(waiting)}{f' ({step})' if step else ''}")

    def _failed_to_load(self) -> set[str]:
        """Models that have failed to load and that the server goes on without: those of an engine, and what is made of
        them."""
        if not self._groups:
            return set()
        of_engines = {name for group in self._groups for name in group}
        return {name for name, why in self._watcher.failed.items() if name in of_engines or DEPENDS in why}

    def _is_hopeless(self, failed: set[str]) -> bool:
        """True if the server stays, and has failed in a model that all engines need, or in each engine or its
        preprocessing."""
        if not self._groups:
            return False
        needed = (group[:2] for group in self._groups)
        return failed != self._watcher.failed.keys() or all(failed.intersection(models) for models in needed)

    def _look_for_abandoned_stubs(self) -> None:
        if self._console.elapsed - self._looked < _LOOK_SECONDS:
            return
        self._looked = self._console.elapsed
        server = self._process.pid
        for model in self._abandoned.kill(server, stubs(server)):
            self._gave_up = True
            self._news(f"tritonserver has given up {model}, which had no CPU time for a second; killing it")

    def _announce(self) -> None:
        host, ports = self._options.host, self._options.ports
        engines = len(set(checks.engine_models(self._names)) - self._failed_to_load())
        models = served_models(host, ports, engines, self._environment.get(KEY_VARIABLE, "")) if self._openai else []
        model = models[0] if models else checks.OPENAI_MODEL
        settings = settings_of(self._options.repository, self._environment)
        keys = settings is not None and has_keys(settings)
        text = examples(host, ports, self._names, model, self._options.triton_address, keys=keys)
        self._console.step("ready")
        if text and not self._again:
            self._console.line(f"\n{text}\n")
        where = f"HTTP {ports.http}, gRPC {ports.grpc}, metrics {ports.metrics}"
        v1 = f", OpenAI base URL {ports.openai_root(host)}/v1" if self._openai else ""
        if models:
            self._console.line(f"Models: {', '.join(models)}.")
        self._console.line(f"Listening: {where}{v1}. Ctrl-C stops.")

    def _pass_stops_on(self) -> None:
        while self._stopping < min(self._stops(), 2):
            self._stopping += 1
            self._bar.close()
            self._stop_watching()
            if self._stopping == 1:
                seconds = self._options.exit_timeout
                self._console.step(f"stopping: up to {seconds} s for running requests (Ctrl-C again kills)")
                self._process.drain()
            else:
                self._console.step("killing")
                self._process.kill()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def _ended(self, code: int) -> None:
        self.failed = (code != 0 or self._hopeless) and not self._stopping
        if self._stopping:
            self._console.step(f"stopped (exit code {code})")
        elif code != 0 or not self.ready:
            of_job = self._job_log.reason() if self._job_log is not None else None
            program = self._job.program if self._job is not None else "tritonserver"
            reasons = [reason for reason in (self._watcher.reason(), of_job) if reason]
            reason = "; ".join(reasons) or f"{program} ended with exit code {code}"
            fail(f"{reason} (log: {self._process.log_path})")
