"""The command line: `gdn info`, `gdn models`, `gdn sessions`, `gdn try` and others, for shells and notebooks.

Exit codes: 0 for success, 1 if the server or a file reports an error (in one line), 2 for a wrong command line.
Thread safety: for one thread.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from gdn_client import cli_commands
from gdn_client.address import check_target
from gdn_client.client import Client
from gdn_client.errors import GdnError
from gdn_client.flow import Retry
from gdn_client.version import __version__


class _Parser(argparse.ArgumentParser):
    """Adds the nearest word to the error of a mistyped command or flag."""

    words: tuple[str, ...] = ()

    def error(self, message: str) -> NoReturn:
        typed = re.search(r"invalid choice: '([^']*)'|unrecognized arguments: (-[-\w]*)", message)
        if typed is not None:
            word = typed.group(1) or typed.group(2)
            near = difflib.get_close_matches(word, self.words, n=1)
            message = message[:300] + (f"; did you mean '{near[0]}'?" if near else "")
        super().error(message)


def _measure_flags(measure: argparse.ArgumentParser) -> None:
    measure.add_argument("--layer", type=int, help="default: the model's first")
    measure.add_argument("--batch", type=_positive, default=1, help="sessions (%(default)s)")
    measure.add_argument(
        "--prompt", type=_positive, default=64, metavar="TOKENS", help="tokens to prefill (%(default)s)"
    )
    measure.add_argument("--steps", type=_positive, default=32, help="decode steps of one token (%(default)s)")
    measure.add_argument("--dtype", choices=["float32", "float16"], default="float32", help="(%(default)s)")
    measure.add_argument("--shared-memory", action="store_true", help="send tensors through memory of this host")


# A parser of a second word would put its own defaults over what stands before that word, so defaults are set once.
_FILES = ("token_file", "tls_ca", "tls_cert", "tls_key")
_SWITCHES = ("allow_insecure", "json", "all")
_DEFAULTS = {"target": "127.0.0.1:50061", "timeout": 10.0, **dict.fromkeys(_FILES), **dict.fromkeys(_SWITCHES, False)}


def _common_flags() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument("--target", type=_target, help="server: HOST:PORT or unix:/PATH (127.0.0.1:50061)")
    common.add_argument("--token-file", metavar="FILE", help="file with a token; default: GDN_TOKEN_FILE's")
    common.add_argument("--tls-ca", metavar="FILE", help="CA of the server's certificate; without it no TLS")
    common.add_argument("--tls-cert", metavar="FILE", help="the client's own certificate")
    common.add_argument("--tls-key", metavar="FILE", help="the key of --tls-cert")
    common.add_argument("--allow-insecure", action="store_true", help="send a token without TLS to another machine")
    common.add_argument("--timeout", type=_seconds, metavar="TIME", help="of each call: 500ms, 10s (10s)")
    return common


def _with_flag(*words: str, **options: Any) -> argparse.ArgumentParser:
    parent = argparse.ArgumentParser(add_help=False)
    parent.add_argument(*words, **options)
    return parent


def _parser() -> argparse.ArgumentParser:
    common = _common_flags()
    listing = _with_flag("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    copying = _with_flag("--progress", action="store_true", help="show a bar; needs tqdm")
    of_model = _with_flag("--model", help="name of the model; not needed if the server has one")
    everybody = _with_flag(
        "--all", action="store_true", default=argparse.SUPPRESS, help="sessions of all callers; for admins"
    )

    parser = _Parser(
        prog="gdn",
        description="Asks a gdn_server. The commands are those of gdnctl, as far as both have them.",
    )
    parser.add_argument("--version", action="version", version=f"gdn {__version__}")
    parser.set_defaults(**_DEFAULTS)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(group: Any, name: str, run: Any, words: str, *more: argparse.ArgumentParser) -> argparse.ArgumentParser:
        one: argparse.ArgumentParser = group.add_parser(name, parents=[common, *more], help=words, description=words)
        one.set_defaults(run=run)
        return one

    command(commands, "info", cli_commands.info, "Show the server: version, limits and tiers.", listing)
    command(commands, "models", cli_commands.models, "Show the served models.", listing)
    words = "Print all metrics in Prometheus' text form (with logins: for admins)."
    command(commands, "metrics", cli_commands.metrics, words)

    words = "List the caller's sessions, or with --all everybody's."
    sessions = command(commands, "sessions", cli_commands.list_sessions, words, listing, everybody)
    of_sessions = sessions.add_subparsers(metavar="COMMAND")
    command(of_sessions, "list", cli_commands.list_sessions, words, listing, everybody)
    create = command(of_sessions, "create", cli_commands.create_session, "Make a session and print its name.", of_model)
    create.add_argument("--id", help="of the session; default: a random one")
    show = command(of_sessions, "show", cli_commands.show_session, "Show the token counts of each layer.", listing)
    show.add_argument("session", metavar="ID")
    delete = command(of_sessions, "delete", cli_commands.delete, "End sessions and free their states.")
    delete.add_argument("sessions", metavar="ID", nargs="+")
    delete.add_argument("--subject", default="", help="owner of the sessions, as sessions --all shows; for admins")

    states = commands.add_parser("state", help="Copy a session's states to a file, or from one.")
    of_state = states.add_subparsers(required=True, metavar="COMMAND")
    export = command(of_state, "export", cli_commands.export_state, "Write a session's states to a file.", copying)
    export.add_argument("--session", required=True, metavar="ID")
    export.add_argument("--out", required=True, metavar="FILE")
    words = "Make a session from such a file and print its name."
    load = command(of_state, "import", cli_commands.import_state, words, copying, of_model)
    load.add_argument("--in", required=True, metavar="FILE", dest="file")
    load.add_argument("--id", help="of the session; default: a random one")

    words = "Step one layer with random input, and print shapes and times."
    _measure_flags(command(commands, "measure", cli_commands.measure, words, of_model))
    _name_words(parser)
    return parser


def _name_words(parser: argparse.ArgumentParser) -> list[str]:
    """Gives the parser and its subparsers the words that can be typed. Returns them.

    The outermost parser reports unknown flags of all commands, so it has the words of all.
    """
    words: list[str] = []
    for action in parser._actions:
        words += action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            words += action.choices
            for one in action.choices.values():
                words += _name_words(one)
    if isinstance(parser, _Parser):
        parser.words = tuple(dict.fromkeys(words))
    return words


def _target(text: str) -> str:
    try:
        check_target(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("target ")) from None
    return text


def _seconds(text: str) -> float:
    form = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|m|h)", text[:60])
    value = float(form.group(1)) * {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}[form.group(2)] if form else math.nan
    if not value > 0:
        try:
            hint = (
                f"; did you mean {text}s?" if len(text) < 20 and float(text) > 0 and math.isfinite(float(text)) else ""
            )
        except ValueError:
            hint = ""
        raise argparse.ArgumentTypeError(
            f"is '{text[:60]}', expected a time above 0 with its unit, such as 500ms, 10s or 2m{hint}"
        )
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
        allow_insecure=arguments.allow_insecure,
        **{name: getattr(arguments, name) for name in _FILES},
        shared_memory="auto" if getattr(arguments, "shared_memory", False) else None,
    )


def as_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Formats rows as columns under their names, with numbers to the right."""
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
    """Runs one command, and returns the exit code."""
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
