"""An admin's acts, checkpoints, tiers, and a watch."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import MODEL
from server import Server, running

import gdn_client
from gdn_client import aio


def tokens(client: gdn_client.Client, *lead: int) -> np.ndarray:
    size = client.models()[0].dims.hidden_size
    return np.random.default_rng(9).standard_normal((*lead, size)).astype(np.float32)


@pytest.fixture()
def guarded(tmp_path: Path) -> Iterator[Server]:
    """A server with a user "alice" and an admin "ops", whose tokens are their names."""
    subjects = [
        {"subject": name, "roles": [role], "tokens": [{"sha256": hashlib.sha256(name.encode()).hexdigest()}]}
        for name, role in (("alice", "user"), ("ops", "admin"))
    ]
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps({"subjects": subjects}))
    folder = tmp_path / "states"
    with running(tmp_path, "--model", f"next={MODEL}", "--tokens-file", str(file), "--disk-dir", str(folder)) as one:
        yield one


def test_an_admin_sees_moves_and_ends_anybodys_sessions(guarded: Server) -> None:
    with (
        gdn_client.Client(guarded.target, token="alice") as alice,
        gdn_client.Client(guarded.target, token="ops") as ops,
    ):
        session = alice.session(session_id="a")
        session.prefill(session.layers[0], tokens(alice, 3))
        assert [one.name for one in alice.sessions()] == ["sessions/a"]
        assert list(ops.sessions()) == []
        assert [(one.name, one.owner) for one in ops.sessions(all=True)] == [("sessions/a", "alice")]
        assert ops.evict("a", tier="disk", subject="alice").owner == "alice"
        with pytest.raises(gdn_client.NotFoundError):
            ops.delete_session("a")
        for refused in (
            lambda: list(alice.sessions(all=True)),
            lambda: alice.delete_session("a", subject="alice"),
            alice.metrics,
            alice.drain,
        ):
            with pytest.raises(gdn_client.PermissionDeniedError):
                refused()
        assert "gdn_sessions" in ops.metrics()
        ops.delete_session("a", subject="alice")
        assert list(ops.sessions(all=True)) == []


def test_an_admin_ends_the_server(guarded: Server) -> None:
    async def main() -> None:
        async with aio.Client(guarded.target, token="ops") as ops:
            assert [one async for one in ops.sessions(all=True)] == []
            assert not (await ops.info()).HasField("drain")
            assert "gdn_" in await ops.metrics()
            assert (await ops.drain()).HasField("begin_time")

    asyncio.run(main())
    until = time.monotonic() + 60
    with (
        gdn_client.Client(guarded.target, token="alice", retry=gdn_client.Retry(overall=0)) as alice,
        # The server cancels a call that is in flight when it closes.
        pytest.raises((gdn_client.UnavailableError, gdn_client.CancelledError)),
    ):
        while time.monotonic() < until:
            assert alice.info().HasField("drain")
            time.sleep(0.01)


def test_checkpoints_are_listed_and_ended(client: gdn_client.Client) -> None:
    with client.session() as session:
        session.prefill(session.layers[0], tokens(client, 3))
        assert session.checkpoints() == []
        for name in ("one", "two"):
            session.checkpoint(name)
        assert [one.checkpoint_id for one in session.checkpoints()] == ["one", "two"]
        session.delete_checkpoint("one")
        assert [one.checkpoint_id for one in session.checkpoints()] == ["two"]
        with pytest.raises(gdn_client.NotFoundError) as refused:
            session.delete_checkpoint("one")
        assert refused.value.reason == "CHECKPOINT_NOT_FOUND"


def test_states_leave_the_device_and_come_back(client: gdn_client.Client) -> None:
    x = tokens(client, 4)
    with client.session() as plain, client.session() as session:
        layer = session.layers[0]
        for one in (plain, session):
            one.prefill(layer, x[:3])
        assert session.evict("disk") == "disk"
        assert sum(client.prefetch([session.id, plain.id])) == 2
        np.testing.assert_array_equal(session.decode(layer, x[3]), plain.decode(layer, x[3]))
        with pytest.raises(ValueError, match="expected one of"):
            session.evict("moon")


def test_a_watch_gives_a_file_now_and_as_the_session_moves(client: gdn_client.Client) -> None:
    x = tokens(client, 6)
    with client.session() as session:
        layer = session.layers[0]
        session.prefill(layer, x[:3])
        watch = client.watch_state(session.id, every_tokens=2)
        first = next(watch)
        assert (first.sequence, first.delta) == (0, False)
        with client.import_state(first.file) as copy:
            want = session.decode(layer, x[3:5])
            np.testing.assert_array_equal(copy.decode(layer, x[3:5]), want)
        second = next(watch)
        assert second.sequence == 1
        watch.close()

    with pytest.raises(gdn_client.NotFoundError):
        next(client.watch_state("nobody", every_tokens=1))


def test_asyncio_does_the_same(server: Server, client: gdn_client.Client) -> None:
    x = tokens(client, 6)

    async def main() -> None:
        async with aio.Client(server.target) as connected, await connected.session() as session:
            layer = session.layers[0]
            await session.prefill(layer, x[:3])
            await session.checkpoint("here")
            assert [one.checkpoint_id for one in await session.checkpoints()] == ["here"]
            await session.delete_checkpoint("here")
            assert await session.evict("disk") == "disk"
            assert sum(await connected.prefetch([session.id])) == 1
            async for snapshot in connected.watch_state(session.name, every=1.0):
                async with await connected.import_state(snapshot.file) as copy:
                    np.testing.assert_array_equal(await copy.decode(layer, x[3]), await session.decode(layer, x[3]))
                break
            assert isinstance(await connected.trace(max_calls=1), list)
            other = await connected.session(session_id="aio-other")
            await connected.delete_session("aio-other")
            with pytest.raises(gdn_client.NotFoundError):
                await connected.delete_session(other.name)

    asyncio.run(main())


def test_calls_are_traced(client: gdn_client.Client) -> None:
    client.trace(keep=100)
    with client.session() as session:
        session.decode(session.layers[0], tokens(client))
        until = time.monotonic() + 60  # a call is noted once its reply is on its way
        while session.name not in (traced := [call.session for call in client.trace()]) and time.monotonic() < until:
            time.sleep(0.01)
        assert session.name in traced
    client.trace(keep=0)
