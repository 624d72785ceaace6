"""Leases: a client's sessions end with it, also if its process is killed and the server restarts in between."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import MODEL
from server import Server, running

import gdn_client
from gdn_client import aio

LONGEST = 60  # seconds until a test gives up
HOLDER = """
import sys, time
import numpy as np
import gdn_client
client = gdn_client.Client(sys.argv[1])
lease = client.lease(grace=2, lease_id="engine")
session = client.session(lease=lease, session_id="held")
session.prefill(session.layers[0], np.zeros((3, client.models()[0].dims.hidden_size), np.float32))
session.checkpoint()
session.fork(ids=["child"])
print("ready", flush=True)
time.sleep(3600)
"""


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + LONGEST
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_lease_is_renewed_and_its_end_ends_its_sessions(client: gdn_client.Client) -> None:
    with client.lease(grace=9) as lease:
        assert lease.grace == 9
        session = client.session(lease=lease)
        child = session.fork()[0]
        other = client.import_state(session.export_state(), lease=lease.name)
        listed = next(one for one in client.leases() if one.name == lease.name)
        assert listed.sessions == 3

        left = [9.0]

        def grows() -> bool:
            left.append(next(one.time_left.ToNanoseconds() / 1e9 for one in client.leases() if one.name == lease.name))
            return left[-1] > left[-2]

        wait_until(grows)  # only a renewal can do that
        assert lease.error is None
    for gone in (session, child, other):
        with pytest.raises(gdn_client.NotFoundError):
            client.attach(gone.name)
    with pytest.raises(gdn_client.NotFoundError) as refused:
        client.session(lease=lease)
    assert refused.value.reason == "LEASE_NOT_FOUND"


def test_a_lease_that_was_ended_says_so(client: gdn_client.Client) -> None:
    lease = client.lease(grace=1, lease_id="ended")
    session = client.session(lease=lease)
    assert client.end_lease("ended") == 1
    wait_until(lambda: lease.error is not None)
    assert isinstance(lease.error, gdn_client.NotFoundError)
    with pytest.raises(gdn_client.NotFoundError):
        client.attach(session.name)


def test_sessions_end_after_the_renewals_stop(client: gdn_client.Client) -> None:
    lease = client.lease(grace=1)
    client.session(lease=lease, session_id="left")
    lease.stop()
    wait_until(lambda: all(one.name != "sessions/left" for one in client.sessions()))


def test_aio_has_leases(server: Server) -> None:
    async def use() -> None:
        async with aio.Client(server.target) as client:
            async with await client.lease(grace=9) as lease:
                session = await client.session(lease=lease)
                assert [one.sessions async for one in client.leases() if one.name == lease.name] == [1]
                left = [9.0, 9.0]
                while left[-1] <= left[-2]:  # until a renewal
                    await asyncio.sleep(0.02)
                    left += [one.time_left.ToNanoseconds() / 1e9 async for one in client.leases()]
                assert lease.error is None
            with pytest.raises(gdn_client.NotFoundError):
                await client.attach(session.name)

    asyncio.run(use())


@pytest.mark.parametrize("restarts", [False, True])
def test_nothing_is_left_of_a_killed_client(tmp_path: Path, restarts: bool) -> None:
    with running(tmp_path, "--model", f"next={MODEL}", "--disk-dir", str(tmp_path / "states")) as server:
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, server.target], stdout=subprocess.PIPE, text=True)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        if restarts:
            server.kill()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        if restarts:
            server.start()
        with gdn_client.Client(server.target) as client:
            assert not restarts or client.info().recovered_sessions == 1
            wait_until(lambda: not list(client.sessions()))
            assert list(client.leases()) == []
