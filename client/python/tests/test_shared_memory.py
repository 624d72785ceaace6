"""Tensors in memory that the server shares: the bits of messages, and nothing that is written to twice."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MODEL
from server import Server, running

import gdn_client
from gdn_client import aio, ring
from gdn_client.flow import Rpc
from gdn_client.proto.gdn.v1 import shared_memory_pb2
from gdn_client.shared_memory import Region

SPEC = gdn_client.OperatorSpec(key_heads=2, value_heads=4, key_dim=8, value_dim=16)


def tokens(client: gdn_client.Client, *lead: int) -> np.ndarray:
    size = client.model("next").dims.hidden_size
    return np.random.default_rng(4).standard_normal((*lead, size)).astype(np.float32)


def steps(session: gdn_client.Session, x: np.ndarray) -> list[np.ndarray]:
    layer = session.layers[0]
    out = [session.prefill(layer, x[:6]), session.decode(layer, x[6]), session.decode(layer, x[7:9], dtype="float16")]
    out.append(session.prefill(layer, x[:0]))
    out.append(session.decode(layer, x[9:12].astype(np.float16), draft=True))
    session.accept(1)
    return out


def test_rows_of_a_step_are_shared_too(client: gdn_client.Client, sharing: gdn_client.Client) -> None:
    x = tokens(client, 20)
    outputs = []
    for one in (client, sharing):
        sessions = [one.session("next", affinity="a") for _ in range(2)]
        layer, batch = sessions[0].layers[0], one.batch(sessions)
        got = list(batch.step(layer, [gdn_client.StepRow(x[:9], "prefill"), gdn_client.StepRow(x[9:12], "draft")]))
        got += batch.step(layer, [gdn_client.StepRow(x[12:13]), gdn_client.StepRow(x[13:15], accept=2)])
        outputs.append([row.output for row in got])
        if one is sharing:
            assert all(in_region(row.output, region_of(sharing)) for row in got)
            # The inputs that are kept for a replay are not in the region.
            assert all(session._state.kept_bytes > x[0].nbytes for session in sessions)
        batch.delete()
    for want, got in zip(*outputs, strict=True):
        np.testing.assert_array_equal(got, want)


def in_region(array: np.ndarray, region: Region) -> bool:
    begin = array.__array_interface__["data"][0]
    return region.address <= begin and begin + array.nbytes <= region.address + region.size


def region_of(client: gdn_client.Client | aio.Client) -> Region:
    assert client.memory.region is not None
    return client.memory.region


@pytest.fixture()
def sharing(server: Server) -> Any:
    with gdn_client.Client(server.target, shared_memory=1 << 20) as one:
        yield one


def test_it_gives_the_bits_of_messages_and_copies_no_output(
    client: gdn_client.Client, sharing: gdn_client.Client
) -> None:
    x = tokens(client, 12)
    with client.session("next") as plain, sharing.session("next") as session:
        want, got = steps(plain, x), steps(session, x)
        for one, other in zip(got, want, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
        region = region_of(sharing)
        assert [in_region(one, region) for one in got] == [True, True, True, False, True]
        assert session.token_count(session.layers[0]) == plain.token_count(plain.layers[0])
        batch = sharing.batch([session])
        np.testing.assert_array_equal(
            batch.decode(session.layers[0], x[None, 0]), client.batch([plain]).decode(plain.layers[0], x[None, 0])
        )


def test_every_kind_of_input(client: gdn_client.Client, sharing: gdn_client.Client) -> None:
    rng = np.random.default_rng(8)
    q, k = rng.standard_normal((2, 5, 2, 8)).astype(np.float32)
    v = rng.standard_normal((5, 4, 16)).astype(np.float32)
    g, beta = -rng.random((5, 4)).astype(np.float32), rng.random((5, 4)).astype(np.float32)
    given = gdn_client.DeltaRule(q, k, v, g, beta, use_qk_l2norm=True)
    with client.session(operator=SPEC) as plain, sharing.session(operator=SPEC) as session:
        got = session.prefill(0, given)
        np.testing.assert_array_equal(got, plain.prefill(0, given))
        assert in_region(got, region_of(sharing))
    dims = client.model("next").dims
    heads, value = dims.value_heads, dims.value_heads * dims.value_dim
    channels = 2 * dims.key_heads * dims.key_dim + value
    projected = gdn_client.Projected(
        *(rng.standard_normal((3, size)).astype(np.float32) for size in (channels, value, heads, heads))
    )
    with client.session("next") as plain, sharing.session("next") as session:
        np.testing.assert_array_equal(
            session.prefill(session.layers[0], projected), plain.prefill(plain.layers[0], projected)
        )


def test_an_output_is_the_callers_while_it_is_referred_to(sharing: gdn_client.Client) -> None:
    x = tokens(sharing, 40)
    with sharing.session("next") as session:
        layer = session.layers[0]
        held = [session.decode(layer, row) for row in x[:20]]
        copies = [array.copy() for array in held]
        part = held[3][4:]
        region = region_of(sharing)
        assert region.used == sum(array.nbytes for array in held)
        for row in x[20:]:
            session.decode(layer, row)
        for array, copy in zip(held, copies, strict=True):
            np.testing.assert_array_equal(array, copy)
        del held, array
        gc.collect()
        assert region.used == part.base.nbytes if part.base is not None else 0
        np.testing.assert_array_equal(part, copies[3][4:])
        del part
        gc.collect()
        assert region.used == 0
    sharing.close()
    assert not region.alive


def test_what_finds_no_room_goes_in_messages(server: Server, client: gdn_client.Client) -> None:
    x = tokens(client, 12)
    room = 3 * x[0].nbytes
    with (
        gdn_client.Client(server.target, shared_memory=room) as small,
        small.session("next") as session,
        client.session("next") as plain,
    ):
        layer = session.layers[0]
        held = [session.decode(layer, row) for row in x]
        for array, row in zip(held, x, strict=True):
            np.testing.assert_array_equal(array, plain.decode(layer, row))
        assert {in_region(array, region_of(small)) for array in held} == {True, False}


def test_a_crash_loses_nothing_though_the_memory_was_used_again(tmp_path: Path) -> None:
    with (
        running(tmp_path, "--model", f"next={MODEL}") as server,
        gdn_client.Client(server.target) as client,
        gdn_client.Client(server.target, shared_memory=1 << 20) as sharing,
    ):
        x = tokens(client, 14)
        plain = client.session("next")
        layer = plain.layers[0]
        want = [plain.prefill(layer, x[:6]), *(plain.decode(layer, row) for row in x[6:12])]
        drafted = plain.decode(layer, x[12:14], draft=True)
        plain.accept(1)
        after = plain.decode(layer, x[0])
        session, other = sharing.session("next"), sharing.session("next")
        batch = sharing.batch([session, other])
        got = [session.prefill(layer, x[:6])]
        other.prefill(layer, x[:6])
        got += [batch.decode(layer, np.stack([row, row]))[0] for row in x[6:12]]
        np.testing.assert_array_equal(session.decode(layer, x[12:14], draft=True), drafted)
        first = region_of(sharing)
        server.kill()
        server.start()
        session.accept(1)
        np.testing.assert_array_equal(session.decode(layer, x[0]), after)
        for one, another in zip(got, want, strict=True):
            np.testing.assert_array_equal(one, another)
        assert session.stats.replays > 0
        assert not first.alive
        assert region_of(sharing) is not first


class LosesReplies:
    """In place of Connection.call: the server takes a step, and its reply is lost."""

    def __init__(self, client: gdn_client.Client) -> None:
        self._call = client.connection.call
        self.requests: list[Any] = []

    def __call__(self, rpc: Rpc) -> Any:
        if rpc.method == "Decode":
            request = type(rpc.request)()
            request.CopyFrom(rpc.request)
            self.requests.append(request)
        reply = self._call(rpc)
        if len(self.requests) == 1 and rpc.method == "Decode":
            raise gdn_client.UnavailableError("the connection is gone")
        return reply


def test_what_a_lost_call_may_still_use_is_not_used_again(
    client: gdn_client.Client, sharing: gdn_client.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = tokens(client, 3)
    with client.session("next") as plain, sharing.session("next") as session:
        layer = session.layers[0]
        want = [plain.decode(layer, row) for row in x]
        held = session.decode(layer, x[0])
        first = region_of(sharing)
        loses = LosesReplies(sharing)
        monkeypatch.setattr(sharing.connection, "call", loses)
        got = session.decode(layer, x[1])
        assert [request.HasField("output_shared") for request in loses.requests] == [True, False]
        assert loses.requests[0].request_id == loses.requests[1].request_id
        assert loses.requests[1].hidden_states.hidden_states.data
        assert not first.alive
        last = session.decode(layer, x[2])
        assert region_of(sharing) is not first
        assert in_region(last, region_of(sharing))
        for one, other in zip([held, got, last], want, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_region_that_the_server_does_not_know_is_replaced(
    client: gdn_client.Client, sharing: gdn_client.Client
) -> None:
    x = tokens(client, 3)
    with client.session("next") as plain, sharing.session("next") as session:
        layer = session.layers[0]
        want = [plain.decode(layer, row) for row in x]
        got = [session.decode(layer, x[0])]
        region_of(sharing).name = "gdn-shm-nobody"
        got += [session.decode(layer, row) for row in x[1:]]
        for one, other in zip(got, want, strict=True):
            np.testing.assert_array_equal(one, other)
        assert in_region(got[2], region_of(sharing))


def test_who_asks_for_it_is_told_where_there_is_none(tmp_path: Path) -> None:
    with running(tmp_path, "--model", f"next={MODEL}", "--shared-memory-dir=") as server:
        with (
            gdn_client.Client(server.target, shared_memory=1 << 20) as client,
            client.session() as session,
            pytest.raises(gdn_client.UnimplementedError) as refused,
        ):
            session.decode(session.layers[0], tokens(client))
        assert refused.value.reason == "SHARED_MEMORY_NOT_OFFERED"
        with gdn_client.Client(server.target, shared_memory="auto") as client, client.session() as session:
            assert session.decode(session.layers[0], tokens(client)).ndim == 1
            assert client.memory.region is None


def test_the_server_has_its_memory_back_when_the_client_closes(tmp_path: Path) -> None:
    with running(tmp_path, "--model", f"next={MODEL}") as server, gdn_client.Client(server.target) as looking:
        with gdn_client.Client(server.target, shared_memory=1 << 20) as client, client.session() as session:
            session.decode(session.layers[0], tokens(client))
            assert looking.info().shared_memory_bytes == (1 << 20) + ring.AREA_BYTES
        until = time.monotonic() + 60
        while looking.info().shared_memory_bytes != 0:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_too_much_of_it_is_told(server: Server) -> None:
    with (
        gdn_client.Client(server.target, shared_memory=1 << 50) as client,
        client.session() as session,
        pytest.raises(gdn_client.ResourceExhaustedError) as refused,
    ):
        session.decode(session.layers[0], tokens(client))
    assert refused.value.reason == "SHARED_MEMORY_EXHAUSTED"
    for wrong in (0, -1, "much"):
        with pytest.raises(ValueError, match="expected bytes"):
            gdn_client.Client(server.target, shared_memory=wrong)  # type: ignore[arg-type]


def test_auto_is_for_this_host_alone(server: Server) -> None:
    with gdn_client.Client(server.target, shared_memory="auto") as client, client.session() as session:
        session.decode(session.layers[0], tokens(client))
        assert region_of(client).size == 64 << 20
    far = gdn_client.Client("example.org:50061", shared_memory="auto")
    assert far.connection.run(far.memory.open()) is None


def test_only_a_regions_file_is_mapped(tmp_path: Path) -> None:
    victim = tmp_path / "gdn-shm-1"
    victim.write_bytes(b"precious")
    link = tmp_path / "gdn-shm-2"
    link.symlink_to(victim)
    for name, path, size in (
        ("passwd", "/etc/passwd", 8),
        ("gdn-shm-1", str(tmp_path / "other"), 8),
        ("gdn-shm-1", str(victim), 9),
        ("gdn-shm-2", str(link), 8),
        ("gdn-shm-3", str(tmp_path / "gdn-shm-3"), 8),
    ):
        region = shared_memory_pb2.SharedRegion(name=name, path=path, bytes=size)
        with pytest.raises(gdn_client.UnimplementedError, match="cannot be shared"):
            Region(region, lambda: None, lambda: False)


def test_parts_are_given_out_once_and_join_again(tmp_path: Path) -> None:
    file = tmp_path / "gdn-shm-x"
    file.write_bytes(bytes(1000))
    region = Region(
        shared_memory_pb2.SharedRegion(name=file.name, path=str(file), bytes=1000), lambda: None, lambda: False
    )
    rng = np.random.default_rng(1)
    held: list[tuple[Any, int]] = []
    for _ in range(2000):
        if held and rng.random() < 0.5:
            block, value = held.pop(int(rng.integers(len(held))))
            assert (block.array() == value).all()
            del block
        elif (block := region.allocate(int(rng.integers(1, 300)))) is not None:
            value = int(rng.integers(256))
            block.array()[:] = value
            held.append((block, value))
            del block
    held.clear()
    assert region.used == 0
    assert region.allocate(1001) is None
    assert region.allocate(1000) is not None


def test_asyncio_shares_memory_too(server: Server, client: gdn_client.Client) -> None:
    x = tokens(client, 8)
    with client.session("next") as plain:
        layer = plain.layers[0]
        want = [plain.prefill(layer, x[:6]), plain.decode(layer, x[6]), plain.decode(layer, x[7])]

    async def main() -> None:
        async with aio.Client(server.target, shared_memory=1 << 20) as connected, await connected.session() as session:
            got = [await session.prefill(layer, x[:6]), await session.decode(layer, x[6])]
            first = region_of(connected)
            call, taken = connected.connection.call, asyncio.Event()

            async def loses_the_reply(rpc: Rpc) -> Any:
                reply = await call(rpc)
                if rpc.method == "Decode" and not taken.is_set():
                    taken.set()
                    await asyncio.Event().wait()
                return reply

            connected.connection.call = loses_the_reply  # type: ignore[method-assign]
            task = asyncio.ensure_future(session.decode(layer, x[0]))
            await asyncio.wait_for(taken.wait(), 30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not first.alive
            got.append(await session.decode(layer, x[7]))
            for one, other in zip(got, want, strict=True):
                np.testing.assert_array_equal(one, other)
            assert in_region(got[0], first)
        with pytest.raises(gdn_client.ResourceExhaustedError):
            async with aio.Client(server.target, shared_memory=1 << 50) as greedy, await greedy.session() as session:
                await session.decode(layer, x[0])

    asyncio.run(main())


def test_torch_outputs_lie_there_too(sharing: gdn_client.Client) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(tokens(sharing, 4))
    with sharing.session("next") as session, gdn_client.Client(sharing.target).session("next") as plain:
        for dtype in (torch.float32, torch.bfloat16):
            got = session.decode(session.layers[0], x[:3].to(dtype))
            assert torch.equal(got, plain.decode(plain.layers[0], x[:3].to(dtype)))
            region = region_of(sharing)
            assert region.address <= got.data_ptr() < region.address + region.size
