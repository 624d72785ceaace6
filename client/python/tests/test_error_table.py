"""The client sends a refused call again just if the table of docs/reference/errors.md says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from conftest import REPOSITORY
from toy_server import LAYERS, ToyServer, client_of, tokens

import gdn_client
from gdn_client import errors
from gdn_client.calls import ASTRAY, MOST_RECOVERIES
from gdn_client.session_state import new_id

TRIES = 6  # after so many it is let through
ROW = re.compile(r"\| `([A-Z_]+)` \| ([A-Z_]+) \| .* \| (\S[^|]*) \|")
TABLE = [
    match.groups()
    for match in map(ROW.fullmatch, (REPOSITORY / "docs/reference/errors.md").read_text().splitlines())
    if match
]
KINDS = {kind.default_code: kind for kind in errors.GdnError.__subclasses__() if kind is not errors.SessionLostError}
PROMPT = gdn_client.PromptPrefix(segments=[{"tokens": 3, "content_sha256": bytes(32)}])
CALLS: dict[str, Callable[[gdn_client.Client, gdn_client.Session], Any]] = {
    "CreateSession": lambda client, session: client.session("m"),
    "GetServerInfo": lambda client, session: client.info(),
    "Prefill": lambda client, session: session.prefill(LAYERS[0], tokens(2)),
    "Decode": lambda client, session: client.batch([session]).decode(LAYERS[0], tokens(1)),
    "AcceptTokens": lambda client, session: session.accept(0),
    "ForkSession": lambda client, session: session.fork(ids=[new_id()]),
    "CheckpointSession": lambda client, session: session.checkpoint(),
    "RestoreCheckpoint": lambda client, session: session.restore(),
    "ExportState": lambda client, session: session.export_state(),
    "WatchState": lambda client, session: next(session.watch_state(every_tokens=1)),
    "KeepPrefix": lambda client, session: session.keep_prefix(PROMPT),
}
STREAMS: dict[str, Callable[[gdn_client.Client, gdn_client.Session], Any]] = {
    "Prefill": lambda client, session: list(session.prefill_stream(LAYERS[0], [tokens(2)])),
    "Decode": lambda client, session: list(session.decode_stream(LAYERS[0], [tokens()])),
}


class Refuses(ToyServer):
    """Refuses one method for ever; `tries` counts."""

    def __init__(self) -> None:
        super().__init__()
        self.refusal: Callable[[], errors.GdnError] | None = None
        self.method, self.tries = "", 0

    def call(self, rpc: Any) -> Any:
        if self.refusal is not None and rpc.method == self.method:
            self.tries += 1
            if self.tries > TRIES:
                self.refusal = None
            else:
                raise self.refusal()
        return super().call(rpc)


def refusal(reason: str, code: str, retry_after: float | None) -> errors.GdnError:
    return KINDS[grpc.StatusCode[code]]("refused", reason=reason, retry_after=retry_after)


@pytest.mark.parametrize("keep_bytes", [1 << 20, 0])
@pytest.mark.parametrize(("reason", "code", "again"), TABLE)
def test_a_refusal_is_met_as_the_table_says(reason: str, code: str, again: str, keep_bytes: int) -> None:
    assert len(TABLE) > 60
    wrong = []
    for calls, first in ((CALLS, 1), (STREAMS, 2)):  # what a stream refuses is asked for once in a call of its own
        for method, call in calls.items():
            server = Refuses()
            client = client_of(server)
            session = client.session("m", keep_bytes=keep_bytes)
            session.prefill(LAYERS[0], tokens(3))
            session.prefill(LAYERS[1], tokens(3))
            server.make_durable()
            server.method = method
            wait = None if again == "no" else 0.0
            server.refusal = lambda wait=wait: refusal(reason, code, wait)
            try:
                call(client, session)
                raised = False
            except gdn_client.GdnError:
                raised = True
            if again == "no":
                most = first + (MOST_RECOVERIES if reason in ASTRAY else 0)  # the session is brought back in between
                if not raised or server.tries > most:
                    wrong.append(f"{method}: {server.tries} tries, expected at most {most}")
            elif raised or server.tries < TRIES:
                wrong.append(f"{method}: {server.tries} tries and an error, expected more")
    assert not wrong


def test_what_waiting_does_not_help_is_not_tried_again() -> None:
    for reason, code, again in TABLE:
        if code == "RESOURCE_EXHAUSTED":
            assert not gdn_client.flow.worth_another_try(refusal(reason, code, None)), again


def test_a_draft_of_somebody_else_is_neither_dropped_nor_waited_for() -> None:
    server = ToyServer()
    client = client_of(server)
    session = client.session("m")
    other = client.attach(session.name)
    session.decode(LAYERS[0], tokens(2), draft=True)
    with pytest.raises(gdn_client.FailedPreconditionError) as refused:
        other.decode(LAYERS[0], tokens())
    assert refused.value.reason == "DRAFT_PENDING"
    session.accept(2)
    assert session.token_count(LAYERS[0]) == 2
