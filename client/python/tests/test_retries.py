"""Calls whose replies are lost on the way: each step is taken once, and its output is had."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gdn_client
from gdn_client.flow import Rpc


class LosesReplies:
    """In place of Connection.call: the server takes the call, and its reply is lost."""

    def __init__(self, client: gdn_client.Client, monkeypatch: pytest.MonkeyPatch, methods: set[str]) -> None:
        self._call = client.connection.call
        self._lose = methods
        self.lost: list[str] = []
        monkeypatch.setattr(client.connection, "call", self)

    def __call__(self, rpc: Rpc) -> Any:
        reply = self._call(rpc)
        if rpc.method in self._lose and self.lost.count(rpc.method) < 2:
            self.lost.append(rpc.method)
            raise gdn_client.UnavailableError("the connection is gone")
        return reply


def test_what_was_taken_is_not_taken_twice(client: gdn_client.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    size = client.models()[0].dims.hidden_size
    x = np.random.default_rng(1).standard_normal((9, size)).astype(np.float32)
    with client.session() as plain:
        layer = plain.layers[0]
        want = [plain.prefill(layer, x[:5]), plain.decode(layer, x[5]), plain.decode(layer, x[6:8], draft=True)]
        plain.accept(1)
        want.append(plain.decode(layer, x[8]))
    loses = LosesReplies(client, monkeypatch, {"CreateSession", "Prefill", "Decode", "AcceptTokens", "DeleteSession"})
    with client.session(model="next") as session:
        got = [session.prefill(layer, x[:5]), session.decode(layer, x[5]), session.decode(layer, x[6:8], draft=True)]
        session.accept(1)
        got.append(session.decode(layer, x[8]))
        assert session.token_count(layer) == 8
        assert session.stats.replays == 0
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)
    assert sorted(set(loses.lost)) == ["AcceptTokens", "CreateSession", "Decode", "DeleteSession", "Prefill"]


def test_a_refusal_that_does_not_pass_is_raised_at_once(
    client: gdn_client.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def refuse(rpc: Rpc) -> Any:
        calls.append(rpc.method)
        raise gdn_client.ResourceExhaustedError("no room", reason="STATE_BUDGET_EXHAUSTED")

    monkeypatch.setattr(client.connection, "call", refuse)
    with pytest.raises(gdn_client.ResourceExhaustedError):
        client.session(model="next")
    assert calls == ["CreateSession"]


def test_what_the_server_says_of_waiting_is_kept_to(client: gdn_client.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("gdn_client.waiting.sleep", waits.append)
    answers = [gdn_client.ResourceExhaustedError("over", reason="QUOTA_EXCEEDED", retry_after=3.5)]
    call = client.connection.call

    def refuse_once(rpc: Rpc) -> Any:
        if answers:
            raise answers.pop()
        return call(rpc)

    monkeypatch.setattr(client.connection, "call", refuse_once)
    assert client.info().version
    assert waits == [3.5]
