"""The command line: `gdn info`, `gdn models`, `gdn sessions`, `gdn try` and others, for shells and notebooks.

Exit codes: 0, 1 where the server or a file says no (in one line), 2 for a command line that is wrong.
Thread safety: for one thread.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gdn_client import cli_commands
from gdn_client.address import check_target
from gdn_client.client import Client
from gdn_client.errors import GdnError
from gdn_client.flow import Retry


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--target", type=_target, default="127.0.0.1:50061", help="HOST:PORT or unix:/PATH (%(default)s)"
    )
    common.add_argument("--token-file", metavar="FILE", help="with a token; GDN_TOKEN_FILE where it is not given")
    common.add_argument("--tls-ca", metavar="FILE", help="who has signed the server's certificate; without it no TLS")
    common.add_argument("--tls-cert", metavar="FILE", help="the client's certificate")
    common.add_argument("--tls-key", metavar="FILE", help="its key")
    common.add_argument("--allow-insecure", action="store_true", help="send a token without TLS to another machine")
    common.add_argument("--timeout", type=_seconds, default=10.0, metavar="SECONDS", help="of each call (%(default)s)")
    listing = argparse.ArgumentParser(add_help=False)
    listing.add_argument("--json", action="store_true", help="for programs")
    copying = argparse.ArgumentParser(add_help=False)
    copying.add_argument("--progress", action="store_true", help="show a bar; wants tqdm")

    parser = argparse.ArgumentParser(prog="gdn", description="Asks a gdn_server.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, words: str, *more: argparse.ArgumentParser) -> argparse.ArgumentParser:
        one = commands.add_parser(name, parents=[common, *more], help=words, description=words)
        one.set_defaults(run=run)
        return one

    command("info", cli_commands.info, "What the server is, its limits and its tiers.", listing)
    command("models", cli_commands.models, "What it serves.", listing)
    sessions = command("sessions", cli_commands.list_sessions, "The caller's sessions.", listing)
    sessions.add_argument("--all", action="store_true", help="everybody's; for admins")
    delete = command("delete", cli_commands.delete, "Ends a session.")
    delete.add_argument("session", metavar="SESSION")
    delete.add_argument("--subject", default="", help="whose, as sessions --all tells; for admins")
    export = command("export", cli_commands.export_state, "Writes a session's states to a file.", copying)
    export.add_argument("session", metavar="SESSION")
    export.add_argument("file", metavar="FILE")
    load = command("import", cli_commands.import_state, "Makes a session of such a file, and prints its name.", copying)
    load.add_argument("file", metavar="FILE")
    load.add_argument("--model", help="may be left out where one alone is served")
    load.add_argument("--id", help="of the session; a random one where it is not given")
    command("metrics", cli_commands.metrics, "What /metrics answers; for admins where callers have to log in.")
    attempt = command("try", cli_commands.try_steps, "Steps one layer with random input, and prints shapes and times.")
    attempt.add_argument("--model", help="may be left out where one alone is served")
    attempt.add_argument("--layer", type=int, help="the first that the model has")
    attempt.add_argument("--batch", type=_positive, default=1, help="sessions (%(default)s)")
    attempt.add_argument("--prompt", type=_positive, default=64, metavar="TOKENS", help="to prefill (%(default)s)")
    attempt.add_argument("--steps", type=_positive, default=32, help="of decode, a token each (%(default)s)")
    attempt.add_argument("--dtype", choices=["float32", "float16"], default="float32", help="(%(default)s)")
    attempt.add_argument(
        "--shared-memory", action="store_true", help="tensors in memory of this host, where there is any"
    )
    return parser


def _target(text: str) -> str:
    try:
        check_target(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("target ")) from None
    return text


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise argparse.ArgumentTypeError(f"is '{text[:60]}', expected seconds as a number above 0, such as 0.5 or 10")
    return value


def _positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"is '{text[:60]}', expected a whole number, 1 or more")
    return value


def _client(arguments: argparse.Namespace) -> Client:
    return Client(
        arguments.target,
        retry=Retry(overall=arguments.timeout),
        timeout=arguments.timeout,
        token_file=arguments.token_file,
        tls_ca=arguments.tls_ca,
        tls_cert=arguments.tls_cert,
        tls_key=arguments.tls_key,
        allow_insecure=arguments.allow_insecure,
        shared_memory="auto" if getattr(arguments, "shared_memory", False) else None,
    )


def as_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Columns under their names, numbers to the right."""
    if not rows:
        return "none"
    names = list(rows[0])
    lines = [names, *([str(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
    right = [all(isinstance(row[name], int | float) for row in rows) for name in names]

    def shown(line: Sequence[str]) -> str:
        cells = (
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(line, widths, right, strict=True)
        )
        return "  ".join(cells).rstrip()

    return "\n".join(shown(line) for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    parsed = _parser().parse_args(arguments)
    try:
        with _client(parsed) as client:
            for part in parsed.run(client, parsed):
                if isinstance(part, str):
                    print(part, flush=True)
                elif getattr(parsed, "json", False):
                    print(json.dumps(part, indent=2))
                else:
                    print(as_table(part), flush=True)
    except (GdnError, OSError, ValueError, ImportError) as error:
        print(f"gdn: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
