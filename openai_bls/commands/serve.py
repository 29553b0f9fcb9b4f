"""Command `serve`: a server in the foreground, and before that an engine where there is none yet."""

from __future__ import annotations

import os
import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path

from openai_bls.commands.building import within_serve
from openai_bls.commands.options import add_place, address, count, repository
from openai_bls.core import guide_names
from openai_bls.engines import registry
from openai_bls.launcher import checks, jobs, workspace
from openai_bls.launcher.console import Console
from openai_bls.launcher.recovery.supervisor import DEFAULT_RESTARTS
from openai_bls.launcher.serving import exposure
from openai_bls.launcher.serving.options import ServeOptions
from openai_bls.launcher.serving.serve import serve
from openai_bls.launcher.tritonserver.command import find_server
from openai_bls.launcher.tritonserver.process import DEFAULT_EXIT_TIMEOUT_SECONDS

GUIDE_NAMES = guide_names.SERVE


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = (
        "Start tritonserver, wait until every model is ready, print examples. Ctrl-C finishes running requests and"
        " stops; a second one kills. With --model an engine is built first, where there is none of it yet; without"
        " --model and without a repository of yours, that is a toy model which comes with the package."
    )
    parser.epilog = "Flags after -- go to tritonserver as they are: serve -- --log-verbose=1"
    parser.add_argument(
        "--model",
        help="build the engine from this, unless it is there: a Hugging Face directory, a GGUF file, a hub id, or"
        " smollm2",
    )
    parser.add_argument(
        "--engine",
        choices=("auto", *registry.names()),
        help="engine of a build that is needed, as `build` has it; one of another kind that is there is built anew",
    )
    within_serve.add_arguments(parser)
    add_place(parser)
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="key that requests must have; the list of processes shows it to other users of the machine, and the"
        " variable OPENAI_BLS_API_KEY does not (default: that one)",
    )
    parser.add_argument(
        "--with",
        type=Path,
        action="append",
        default=[],
        dest="further_repositories",
        metavar="FOLDER",
        help="a further model repository, such as examples; may be given several times",
    )
    parser.add_argument(
        "--log-file",
        type=Path,
        metavar="FILE",
        help="keep tritonserver's log here (default: a temporary file, kept after a failure)",
    )
    parser.add_argument(
        "--exit-timeout",
        type=int,
        default=DEFAULT_EXIT_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="how long a stop waits for running requests (default: %(default)s)",
    )
    parser.add_argument(
        "--restarts",
        type=count,
        default=DEFAULT_RESTARTS,
        metavar="N",
        help="restarts within 10 minutes of a server that ends, and of each model whose process dies, after which it"
        " stays down; 0 for none, and no model control either (default: %(default)s)",
    )
    tls = parser.add_argument_group("HTTPS on /v1", "Each is the setting of its name; see docs/operations/security.md.")
    tls.add_argument("--ssl-certfile", type=Path, metavar="FILE", help="certificate and chain, PEM")
    tls.add_argument("--ssl-keyfile", type=Path, metavar="FILE", help="private key, PEM (default: in --ssl-certfile)")
    tls.add_argument("--ssl-ca-certs", type=Path, metavar="FILE", help="CAs of clients, which then need a certificate")
    jobs.add_arguments(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print the command and the changes to the environment, start nothing"
    )
    parser.add_argument("--verbose", action="store_true", help="show the whole log, not only warnings")


def serve_options(options: Namespace) -> ServeOptions:
    """Options of the launcher, by a command line."""
    host, ports = address(options)
    asked = ServeOptions(
        repository=repository(options),
        further_repositories=tuple(options.further_repositories),
        ports=ports,
        host=host,
        triton_host=options.triton_host,
        api_key=options.api_key,
        log_file=options.log_file,
        exit_timeout=options.exit_timeout,
        restarts=options.restarts,
        verbose=options.verbose,
        ssl_certfile=options.ssl_certfile,
        ssl_keyfile=options.ssl_keyfile,
        ssl_ca_certs=options.ssl_ca_certs,
        jobs=jobs.chosen(options),
        dry_run=options.dry_run,
        extra=options.extra,
    )
    return exposure.closed(asked, {**os.environ, **asked.own_environment})


def run(options: Namespace) -> int:
    """Serve until the end."""
    folder = repository(options)
    status = jobs.run(options, jobs.JobRequest(folder, options.extra, dict(os.environ)))
    if status is not None:
        return status
    built_with = within_serve.words(options)
    build = None
    console = Console()
    if workspace.is_own(folder) or options.model or options.engine or built_with:
        # Here, since the builder imports numpy; and what takes long comes last.
        from openai_bls.commands.building.first_engine import check_source, ensure_engine, needed

        if options.dry_run:
            build = needed(
                folder, options.model, lambda line: console.line(f"# {line}"), engine=options.engine, given=built_with
            )
            if build is not None:
                check_source(build)
                console.line(shlex.join(["openai-bls", "build", *build]))
        else:
            wanted = serve_options(options)
            checks.check_runtime(find_server())
            checks.check_ports(wanted.ports, wanted.host, wanted.triton_address)
            ensure_engine(folder, options.model, console.step, engine=options.engine, given=built_with)
    elif not options.dry_run and (outdated := workspace.outdated(folder)):
        console.line(
            f"warning: {', '.join(outdated)} in {folder} is not what this release brings: if the repository is of"
            f" another release, run `openai-bls prepare --model-repository {folder}`"
        )
    # Read again: the model repository may be new.
    return serve(serve_options(options), console, builds=build is not None)
