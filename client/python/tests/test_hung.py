"""A server that takes calls and hangs: what else a step needs takes from the step's own timeout.

No test asks how long something took here. Clocks are the tests' own, or the fakes record the time that they were given.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from conftest import MODEL
from server import Server, running
from toy_server import LAYERS, ToyServer, client_of, tokens

import gdn_client
from gdn_client import aio, array_flow, ring
from gdn_client.flow import Flow, OpenRegion, Retry, Rpc, Sleep
from gdn_client.mixed import MixedStep
from gdn_client.proto.gdn.v1 import info_pb2, shared_memory_pb2
from gdn_client.session_state import StepOptions
from gdn_client.step_call import StepCall, StepRow

ROUNDING = 1.02  # gRPC sends a call's remaining time with three digits, rounded up
ONCE = Retry(overall=0.0)


class Clock:
    """In place of `time.monotonic`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture()
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(time, "monotonic", one)
    return one


# ---- The ring's own part


class FakeRing:
    """In place of `_ring.Ring`. A ring of the socket "silent" never comes."""

    def __init__(self, clock: Clock, path: str, token: bytes, spin_us: int, timeout_us: int = 2_000_000) -> None:
        self.timeouts: list[float] = []
        self.open = True
        if path == "silent":
            clock.now += timeout_us / 1e6
            raise OSError("the server sent no ring")

    def is_open(self) -> bool:
        return self.open

    def call(self, number: int, message: bytes, timeout_us: int, room: int) -> tuple[int, int, bytes, bytes]:
        self.timeouts.append(timeout_us / 1e6)
        return 0, 0, b"", b""


class Share:
    """In place of the ShareMemory call: it takes `takes` seconds, and gives a ring of this socket."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.takes, self.socket = clock, 0.0, "socket"
        self.given: list[float] = []
        self.ended = 0

    def __call__(self, request: Any, seconds: float) -> tuple[Any, Callable[[], None]]:
        self.given.append(seconds)
        self.clock.now += min(self.takes, seconds)
        if self.takes > seconds:
            raise gdn_client.DeadlineExceededError("the server has shared no memory in time")
        reply = shared_memory_pb2.ShareMemoryResponse(ring={"socket_path": self.socket, "token": b"t" * 32})
        return reply, self.end

    def end(self) -> None:
        self.ended += 1


@pytest.fixture()
def share(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Share:
    module = SimpleNamespace(Ring=lambda *given: FakeRing(clock, *given))
    monkeypatch.setattr(ring, "_ring", module)
    return Share(clock)


def call(link: ring.RingLink, timeout: float) -> tuple[Any, float]:
    return link.call("Decode", SimpleNamespace(SerializeToString=bytes), timeout)


def test_a_rings_opening_takes_from_the_calls_timeout(clock: Clock, share: Share) -> None:
    share.takes = 0.1
    link = ring.RingLink(share)
    reply, _ = call(link, 0.4)
    assert reply is not None
    assert share.given == pytest.approx([0.2])
    assert link._ring.timeouts == pytest.approx([0.3], abs=1e-5)
    call(link, 0.4)
    assert link._ring.timeouts[1] == pytest.approx(0.4), "the ring was open"


def test_a_ring_that_hangs_leaves_half_for_a_message(clock: Clock, share: Share) -> None:
    share.takes = float("inf")
    link = ring.RingLink(share)
    assert call(link, 0.4) == (None, pytest.approx(0.2))
    assert call(link, 0.4) == (None, 0.4), "the next try is due later"
    clock.now += ring.RETRY_SECONDS
    assert call(link, 0.4) == (None, pytest.approx(0.2))


def test_another_ring_takes_two_seconds_at_most(clock: Clock, share: Share) -> None:
    link = ring.RingLink(share)
    call(link, 60.0)
    link._ring.open = False
    share.takes = float("inf")
    assert call(link, 60.0) == (None, pytest.approx(58.0))
    assert share.given == pytest.approx([30.0, 2.0])


def test_a_silent_socket_takes_no_more_than_the_opening(clock: Clock, share: Share) -> None:
    share.takes, share.socket = 0.05, "silent"
    assert call(ring.RingLink(share), 0.4) == (None, pytest.approx(0.2, abs=1e-5))
    assert share.ended == 1, "nobody uses the ring that the server has made"


def test_while_a_call_opens_a_ring_the_others_are_messages() -> None:
    asked, goes_on = threading.Event(), threading.Event()

    def share(request: Any, seconds: float) -> Any:
        asked.set()
        goes_on.wait()
        raise gdn_client.UnavailableError("nobody is there")

    link = ring.RingLink(share)
    with futures.ThreadPoolExecutor() as pool:
        first = pool.submit(call, link, 50.0)
        asked.wait()
        try:
            assert pool.submit(call, link, 0.4).result(timeout=60) == (None, 0.4)
        finally:
            goes_on.set()
        assert first.result()[0] is None


# ---- Regions, and the tries of a call


def test_a_region_that_hangs_takes_from_the_first_tries_timeout(clock: Clock) -> None:
    with client_of(ToyServer(), shared_memory=1 << 20, retry=Retry(overall=10.0)) as client:
        state = client.session("toy")._state
        state.memory._must = False  # it could share once
        flow = array_flow.decode([state], LAYERS[0], tokens(), StepOptions(), 0.4, alone=True)
        assert flow.send(None) == OpenRegion(1 << 20, 0.4)
        clock.now += 0.2
        first = flow.throw(gdn_client.DeadlineExceededError("the server has shared no memory in time"))
        assert (first.method, first.timeout, first.spent) == ("Decode", 0.4, pytest.approx(0.2))
        clock.now += 0.2
        assert isinstance(flow.throw(gdn_client.UnavailableError("away")), Sleep)
        again = flow.send(None)
        assert (again.method, again.timeout, again.spent) == ("Decode", 0.4, 0.0), "each try has the whole timeout"
        flow.close()


def step_of(client: gdn_client.Client, timeout: float) -> Flow[Any]:
    sessions = [client.session("toy") for _ in range(2)]
    call = StepCall(LAYERS[0], [StepRow(x) for x in tokens(2, 1)], StepOptions(), timeout=timeout)
    states = [session._state for session in sessions]
    return MixedStep(states, call, client.abilities).applied()


def test_a_region_takes_from_the_timeout_of_a_step_of_rows(clock: Clock) -> None:
    with client_of(ToyServer(), shared_memory=1 << 20, retry=Retry(overall=10.0)) as client:
        client.memory._must = False
        flow = step_of(client, 0.4)
        assert flow.send(None) == OpenRegion(1 << 20, 0.4)
        clock.now += 0.2
        first = flow.throw(gdn_client.DeadlineExceededError("the server has shared no memory in time"))
        assert (first.method, first.timeout, first.spent) == ("Step", 0.4, pytest.approx(0.2))
        clock.now += 0.2
        assert isinstance(flow.throw(gdn_client.UnavailableError("away")), Sleep)
        clock.now += ring.RETRY_SECONDS  # the next try opens a region too
        assert flow.send(None) == OpenRegion(1 << 20, 0.4)
        clock.now += 0.1
        again = flow.throw(gdn_client.DeadlineExceededError("the server has shared no memory in time"))
        assert (again.method, again.timeout, again.spent) == ("Step", 0.4, pytest.approx(0.1))
        flow.close()


def region(folder: Path) -> Any:
    file = folder / "gdn-shm-x"
    file.write_bytes(bytes(1 << 16))
    told = shared_memory_pb2.SharedRegion(name=file.name, path=str(file), bytes=1 << 16)
    return gdn_client.shared_memory.Region(told, lambda: None, lambda: False)


@pytest.mark.parametrize("rows", [False, True])
def test_a_message_in_place_of_a_lost_region_has_the_rest_of_the_try(rows: bool, clock: Clock, tmp_path: Path) -> None:
    with client_of(ToyServer(), shared_memory=1 << 16, retry=ONCE) as client:
        state = client.session("toy")._state
        flow: Flow[Any] = array_flow.decode([state], LAYERS[0], tokens(), StepOptions(), 0.4, alone=True)
        if rows:
            flow = step_of(client, 0.4)
        assert isinstance(flow.send(None), OpenRegion)
        first: Any = flow.send(region(tmp_path))
        assert (first.timeout, first.spent) == (0.4, 0.0)
        clock.now += 0.3
        message: Any = flow.throw(gdn_client.NotFoundError("no region", reason="SHARED_REGION_NOT_FOUND"))
        if isinstance(message, OpenRegion):
            message = flow.throw(gdn_client.UnavailableError("away"))
        assert (message.timeout, message.spent) == (0.4, pytest.approx(0.3))
        flow.close()


def test_the_first_try_of_a_step_of_rows_is_part_of_its_time(clock: Clock) -> None:
    with client_of(ToyServer(), retry=Retry(overall=1.0)) as client:
        flow = step_of(client, 2.0)
        assert isinstance(flow.send(None), Rpc)
        clock.now += 2.0
        with pytest.raises(gdn_client.DeadlineExceededError):
            flow.throw(gdn_client.DeadlineExceededError("late"))


def test_a_prefill_asks_for_the_limits_within_its_timeout() -> None:
    with client_of(ToyServer()) as client:
        session, asked = client.session("toy"), []
        ask = client.connection.run

        def run(flow: Flow[Any]) -> Any:
            asked.append(flow.send(None))
            flow.close()
            return info_pb2.GetServerInfoResponse(limits={"max_message_bytes": 1 << 24})

        client.connection.run = run  # type: ignore[method-assign]
        assert client.limits_within(0.4).max_message_bytes == 1 << 24
        assert (asked[0].method, asked[0].timeout) == ("GetServerInfo", 0.4)
        client._limits = None
        client.connection.run = ask  # type: ignore[method-assign]
        given: list[float | None] = []
        within = client.limits_within
        client.limits_within = lambda timeout: (given.append(timeout), within(timeout))[1]  # type: ignore[method-assign]
        session.prefill(LAYERS[0], tokens(3), timeout=7.0)
        session.prefill_future(LAYERS[0], tokens(3), timeout=8.0).result()
        assert given == [7.0, 8.0]


# ---- A server that hangs


class HungServer:
    """Takes the place of a server: it answers GetServerInfo, and refuses steps. ShareMemory never ends."""

    def __init__(self, port: int) -> None:
        self.left: list[float] = []  # of each step's time, when it arrived
        self._over = threading.Event()
        self._pool = futures.ThreadPoolExecutor(16)
        self._server = grpc.server(self._pool)
        handlers = {
            "GetServerInfo": grpc.unary_unary_rpc_method_handler(lambda request, context: b""),
            "ShareMemory": grpc.unary_stream_rpc_method_handler(self._share),
            "Decode": grpc.unary_unary_rpc_method_handler(self._step),
            "Step": grpc.unary_unary_rpc_method_handler(self._step),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("gdn.v1.GdnService", handlers),))
        assert self._server.add_insecure_port(f"127.0.0.1:{port}") == port
        self._server.start()

    def _share(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        cancelled = threading.Event()
        context.add_callback(cancelled.set)
        while not cancelled.wait(0.01) and not self._over.is_set():
            pass
        yield from ()

    def _step(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.left.append(context.time_remaining())
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "nothing is done here")
        return b""

    def stop(self) -> None:
        self._over.set()
        self._server.stop(0).wait()
        self._pool.shutdown()


def reach(ask: Callable[[], Any]) -> None:
    while True:
        try:
            ask()
            return
        except gdn_client.UnavailableError:
            time.sleep(0.01)


REFUSED = (gdn_client.InvalidArgumentError, gdn_client.DeadlineExceededError)  # a loaded machine may let the time pass
TIMEOUT = 4.0


@pytest.fixture()
def hanging(tmp_path: Path) -> Iterator[tuple[Server, Callable[[], HungServer]]]:
    """A server, and a function that puts a hung one in its place."""
    with running(tmp_path, "--model", f"next={MODEL}") as server:
        hung: list[HungServer] = []

        def hang() -> HungServer:
            server.kill()
            hung.append(HungServer(server.port))
            return hung[0]

        yield server, hang
        for one in hung:
            one.stop()


@pytest.mark.parametrize("rows", [False, True])
def test_a_step_after_a_hung_region_and_a_hung_ring_has_the_rest_of_its_time(
    rows: bool, hanging: tuple[Server, Callable[[], HungServer]]
) -> None:
    server, hang = hanging
    with gdn_client.Client(server.target, shared_memory=1 << 20, retry=ONCE) as client:
        session = client.session("next")
        layer, x = session.layers[0], np.zeros((2, client.model("next").dims.hidden_size), np.float32)
        session.decode(layer, x[0])
        hung = hang()
        reach(client.info)
        link = client.connection.ring
        assert link is not None
        link._ring.call(2, b"", 60_000_000, 4096)  # sees that the server is gone
        assert not link.is_open
        with pytest.raises(REFUSED):
            if rows:
                client.batch([session]).step(layer, [StepRow(x[1:])], timeout=TIMEOUT)
            else:
                session.decode(layer, x[1], timeout=TIMEOUT)
    for left in hung.left:
        assert left <= ROUNDING * TIMEOUT / 4


def test_asyncio_takes_a_hung_region_from_the_steps_time(hanging: tuple[Server, Callable[[], HungServer]]) -> None:
    server, hang = hanging

    async def main() -> HungServer:
        async with aio.Client(server.target, shared_memory=1 << 20, retry=ONCE) as client:
            session = await client.session("next")
            layer, x = session.layers[0], np.zeros((2, (await client.model("next")).dims.hidden_size), np.float32)
            await session.decode(layer, x[0])
            hung = await asyncio.to_thread(hang)
            while True:
                try:
                    await client.info()
                    break
                except gdn_client.UnavailableError:
                    await asyncio.sleep(0.01)
            with pytest.raises(REFUSED):
                await session.decode(layer, x[1], timeout=TIMEOUT)
            return hung

    hung = asyncio.run(main())
    for left in hung.left:
        assert left <= ROUNDING * TIMEOUT / 2


def test_who_must_have_memory_is_told_that_it_is_late(hanging: tuple[Server, Callable[[], HungServer]]) -> None:
    server, hang = hanging
    with gdn_client.Client(server.target, shared_memory=1 << 20, retry=ONCE) as client:
        session = client.session("next")
        x = np.zeros(client.model("next").dims.hidden_size, np.float32)
        hung = hang()
        reach(client.info)
        with pytest.raises(gdn_client.DeadlineExceededError, match="no memory in time"):
            session.decode(session.layers[0], x, timeout=0.2)
    assert hung.left == []
