"""Targets at which no server is, and targets that are none: each is told by the first call, and not waited for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from server import Server

import gdn_client
from gdn_client import aio, cli
from gdn_client.address import LONGEST_PATH

HOURS = 4 * 3600.0  # a test that waits for it does not end


@pytest.fixture()
def refused() -> Iterator[str]:
    """An address at which nothing listens: the port is taken, and nobody calls `listen`."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture()
def silent() -> Iterator[str]:
    """An address at which connections are taken, and nothing is ever said."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        raise AssertionError(f"the client waits {seconds:.2f} s for another try")

    monkeypatch.setattr("gdn_client.waiting.sleep", sleep)


FIRST_CALLS: dict[str, Callable[[gdn_client.Client], Any]] = {
    "info": lambda client: client.info(),
    "models": lambda client: client.models(),
    "limits": lambda client: client.limits,
    "session": lambda client: client.session("m"),
    "operator": lambda client: client.session(operator=gdn_client.OperatorSpec()),
    "attach": lambda client: client.attach("a"),
    "sessions": lambda client: list(client.sessions()),
    "export_state": lambda client: client.export_state("a"),
    "import_state": lambda client: client.import_state(b"", model="m"),
    "delete_session": lambda client: client.delete_session("a"),
    "evict": lambda client: client.evict("a"),
    "prefetch": lambda client: client.prefetch(["a"]),
    "metrics": lambda client: client.metrics(),
    "drain": lambda client: client.drain(),
    "trace": lambda client: client.trace(),
    "drop_prefixes": lambda client: client.drop_prefixes(),
    "watch_state": lambda client: next(client.watch_state("a")),
}


@pytest.mark.parametrize("name", FIRST_CALLS)
def test_a_port_that_refuses_is_told_by_the_first_call(refused: str, name: str) -> None:
    with (
        gdn_client.Client(refused, retry=gdn_client.Retry(overall=HOURS)) as client,
        pytest.raises(gdn_client.NoServerError, match=f"no gdn_server answers at {refused}: nothing listens there"),
    ):
        FIRST_CALLS[name](client)


def test_a_server_that_says_nothing_is_told_once_the_time_to_connect_is_over(silent: str) -> None:
    retry = gdn_client.Retry(overall=HOURS)
    with (
        gdn_client.Client(silent, retry=retry, timeout=HOURS, connect_timeout=0.2) as client,
        pytest.raises(gdn_client.NoServerError),
    ):
        client.info()


def test_asyncio_and_slices_tell_it_too(refused: str) -> None:
    retry = gdn_client.Retry(overall=HOURS)

    async def ask() -> None:
        async with aio.Client(refused, retry=retry) as client:
            with pytest.raises(gdn_client.NoServerError):
                await client.info()
            with pytest.raises(gdn_client.NoServerError):
                await client.import_state(b"", model="m")

    asyncio.run(ask())
    with gdn_client.SlicedClient([refused, refused], retry=retry) as client, pytest.raises(gdn_client.NoServerError):
        client.session("m")


def test_the_command_line_tells_it(refused: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "--target", refused, "--timeout", f"{HOURS}s"]) == 1
    assert "no gdn_server answers at" in capsys.readouterr().err


def test_a_server_that_is_started_beside_the_client_is_waited_for_if_asked(
    refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("gdn_client.waiting.sleep", sleep)
    with (
        gdn_client.Client(refused, retry=gdn_client.Retry(overall=0, connect=HOURS)) as client,
        pytest.raises(KeyboardInterrupt),
    ):
        client.info()


def test_a_server_that_has_answered_is_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with gdn_client.Client(server.target) as client:
        client.info()
        assert not isinstance(client.connection.reach.error(_Gone()), gdn_client.NoServerError)


class _Gone(Exception):
    def code(self) -> Any:
        return gdn_client.UnavailableError.default_code

    def details(self) -> str:
        return "Connection refused"

    def initial_metadata(self) -> tuple[()]:
        return ()

    trailing_metadata = initial_metadata


@pytest.mark.parametrize("make", [gdn_client.Client, aio.Client, lambda target: gdn_client.SlicedClient([target])])
@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("", "target is empty, expected HOST:PORT"),
        ("a" * 300 + ":50061", "no host, or one of more than 253 letters"),
        ("ipv4:" + ",".join(["10.0.0.1:50061"] * 1000), "expected at most 4096"),
        ("unix:/" + "p" * (LONGEST_PATH + 3), f"a path of at most {LONGEST_PATH} bytes"),
        ("unix:", f"a path of at most {LONGEST_PATH} bytes"),
        (":50061", "has no host"),
        ("host:", "port ''"),
        ("host:0", "port '0'"),
        ("host:65536", "port '65536'"),
        ("host:http", "port 'http'"),
        ("[::1]:x", "port 'x'"),
        ("::1:50061", "without brackets"),
        ("50061", "a port without a host"),
        ("http://host:50061", "is a URL"),
        ("two words:50061", "with a space"),
        ("host:50061\n", "cannot be printed"),
    ],
)
def test_a_target_that_is_none_is_refused_at_once(make: Callable[[str], Any], target: str, why: str) -> None:
    with pytest.raises(ValueError, match="target") as refused:
        make(target)
    assert why in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("target", [None, 50061, b"host:50061"])
def test_a_target_that_is_no_string_is_refused_at_once(target: Any) -> None:
    with pytest.raises(TypeError, match="HOST:PORT"):
        gdn_client.Client(target)


@pytest.mark.parametrize(
    "target",
    ["h:1", "[::1]:50061", "127.0.0.1:65535", "unix:/run/gdn", "unix:gdn", "unix:///run/gdn", "unix-abstract:gdn",
     "dns:///host:50061", "ipv4:10.0.0.1:50061,10.0.0.2:50061", "ipv6:[::1]:50061", "host"],
)  # fmt: skip
def test_a_target_that_grpc_knows_is_taken(target: str) -> None:
    gdn_client.Client(target).close()
