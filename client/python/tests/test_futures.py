"""Steps that are asked for ahead: in order for a session, at once for several, and none behind one that failed."""

from __future__ import annotations

import concurrent.futures
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MODEL
from server import Server, running

import gdn_client
from gdn_client.flow import Rpc


def tokens(client: gdn_client.Client, *lead: int) -> np.ndarray:
    size = client.models()[0].dims.hidden_size
    return np.random.default_rng(6).standard_normal((*lead, size)).astype(np.float32)


class Gate:
    """In place of Connection.call: steps wait to be let through."""

    def __init__(self, client: gdn_client.Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self._call = client.connection.call
        self._lock = threading.Condition()
        self._open = False
        self.waiting = 0
        monkeypatch.setattr(client.connection, "call", self)

    def __call__(self, rpc: Rpc) -> Any:
        if rpc.method == "Decode":
            with self._lock:
                self.waiting += 1
                self._lock.notify_all()
                assert self._lock.wait_for(lambda: self._open, 60)
        return self._call(rpc)

    def until(self, waiting: int) -> None:
        with self._lock:
            assert self._lock.wait_for(lambda: self.waiting >= waiting, 60)

    def open(self) -> None:
        with self._lock:
            self._open = True
            self._lock.notify_all()


def test_a_sessions_steps_are_taken_in_their_order(client: gdn_client.Client) -> None:
    x = tokens(client, 20)
    with client.session() as plain, client.session() as session:
        layer, other = plain.layers[:2]
        want = [plain.prefill(layer, x[:6]), plain.prefill(other, x[:6])]
        want += [plain.decode(layer, row) for row in x[6:]]
        futures = [session.prefill_future(layer, x[:6]), session.prefill_future(other, x[:6])]
        futures += [session.decode_future(layer, row) for row in x[6:-1]]
        last = session.decode(layer, x[-1])  # waits for its turn
        assert all(future.done() for future in futures)
        for got, expected in zip([*(future.result() for future in futures), last], want, strict=True):
            np.testing.assert_array_equal(got, expected)
        assert session.token_count(layer) == 20


def test_sessions_do_not_wait_for_each_other(client: gdn_client.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    x = tokens(client, 4, 2)
    front, back = ([client.session(affinity="a") for _ in range(2)] for _ in range(2))
    with client.session() as plain:
        layer = plain.layers[0]
        want = [plain.decode(layer, row) for row in x[0]]
    gate = Gate(client, monkeypatch)
    first, second = (
        client.batch(front).decode_future(layer, x[:2, 0]),
        client.batch(back).decode_future(layer, x[2:, 0]),
    )
    third = client.batch(front).decode_future(layer, x[:2, 1])
    across = client.batch([front[0], back[0]])
    fourth = across.decode_future(layer, x[::2, 1])
    gate.until(2)  # both at once; the third waits for the first, the fourth for all
    assert not any(future.done() for future in (first, second, third, fourth))
    assert gate.waiting == 2
    gate.open()
    _, late = concurrent.futures.wait([first, second, third, fourth], 60)
    assert not late
    np.testing.assert_array_equal(first.result()[0], want[0])
    np.testing.assert_array_equal(third.result()[0], want[1])
    assert [session.token_count(layer) for session in (*front, *back)] == [3, 2, 2, 1]
    for batch in (front, back):
        client.batch(batch).delete()


def test_none_is_taken_behind_one_that_failed(client: gdn_client.Client) -> None:
    x = tokens(client, 4)
    bad = x[1].copy()
    bad[3] = np.nan
    with client.session() as plain, client.session() as session:
        layer = plain.layers[0]
        plain.decode(layer, x[0])
        want = [plain.decode(layer, row) for row in x[1:]]
        futures = [session.decode_future(layer, x[0]), session.decode_future(layer, bad)]
        concurrent.futures.wait(futures, 60)
        behind = session.decode_future(layer, x[2])  # though the failure is old by now, nobody has looked
        with pytest.raises(gdn_client.AbortedError) as refused:
            behind.result(60)
        assert refused.value.reason == "PREVIOUS_SEGMENT_FAILED"
        assert session.token_count(layer) == 1
        assert isinstance(futures[1].exception(), gdn_client.InvalidArgumentError)
        np.testing.assert_array_equal(session.decode_future(layer, x[1]).result(60), want[0])
        session.decode_future(layer, bad)
        with pytest.raises(gdn_client.AbortedError):
            session.decode(layer, x[2])
        np.testing.assert_array_equal(session.decode(layer, x[2]), want[1])


def test_one_that_is_cancelled_never_was(client: gdn_client.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    x = tokens(client, 4)
    with client.session() as plain, client.session() as session:
        layer = plain.layers[0]
        plain.decode(layer, x[0])
        want = plain.decode(layer, x[3])
        gate = Gate(client, monkeypatch)
        first = session.decode_future(layer, x[0])
        gate.until(1)
        second, third = session.decode_future(layer, x[1]), session.decode_future(layer, x[2])
        assert not first.cancel()
        assert second.cancel()
        gate.open()
        with pytest.raises(gdn_client.AbortedError):
            third.result(60)
        first.result(60)
        with pytest.raises(concurrent.futures.CancelledError):
            second.result()
        np.testing.assert_array_equal(session.decode_future(layer, x[3]).result(60), want)
        assert session.token_count(layer) == 2


def test_closing_waits_for_what_was_asked_for(server: Server) -> None:
    with gdn_client.Client(server.target) as client:
        x = tokens(client, 20)
        session = client.session(session_id="closing")
        futures = [session.decode_future(session.layers[0], row) for row in x]
        futures[0].add_done_callback(lambda _: client.close())
    assert all(future.result(60).shape == x[0].shape for future in futures)
    with gdn_client.Client(server.target) as client:
        assert client.attach("closing").token_count(session.layers[0]) == 20
        client.delete_session("closing")


def test_a_callback_may_ask_for_more(client: gdn_client.Client) -> None:
    x = tokens(client, 2)
    with client.session() as session:
        layer = session.layers[0]
        more: concurrent.futures.Future[np.ndarray] = concurrent.futures.Future()
        first = session.decode_future(layer, x[0])
        first.add_done_callback(lambda _: more.set_result(session.decode(layer, x[1])))
        assert more.result(60).shape == x[1].shape
        assert session.token_count(layer) == 2


def test_a_crash_loses_nothing(tmp_path: Path) -> None:
    with running(tmp_path, "--model", f"next={MODEL}") as server, gdn_client.Client(server.target) as client:
        x = tokens(client, 12)
        with client.session() as plain, client.session() as session:
            layer = plain.layers[0]
            want = [plain.decode(layer, row) for row in x]
            futures = [session.decode_future(layer, row) for row in x[:6]]
            futures[2].result(60)
            server.kill()
            server.start()
            futures += [session.decode_future(layer, row) for row in x[6:]]
            for future, expected in zip(futures, want, strict=True):
                np.testing.assert_array_equal(future.result(60), expected)
