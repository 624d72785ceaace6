"""The asyncio client: the same answers, several sessions at once, and a crash in between."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MODEL
from server import Server, running

import gdn_client
from gdn_client import aio
from gdn_client.flow import Rpc


def tokens(client: gdn_client.Client, *lead: int) -> np.ndarray:
    size = client.models()[0].dims.hidden_size
    return np.random.default_rng(2).standard_normal((*lead, size)).astype(np.float32)


def test_it_gives_what_the_other_client_gives(server: Server, client: gdn_client.Client) -> None:
    x = tokens(client, 3, 9)
    want = []
    for row in x:
        with client.session() as session:
            layer = session.layers[0]
            want.append(
                [session.prefill(layer, row[:5]), session.decode(layer, row[5]), session.decode(layer, row[6:8])]
            )

    async def one(connected: aio.Client, row: np.ndarray) -> list[np.ndarray]:
        async with await connected.session() as session:
            first = await session.prefill(layer, row[:5])
            second = await session.decode(layer, row[5])
            drafted = await session.decode(layer, row[6:9], draft=True)
            await session.accept(2)
            assert session.token_count(layer) == 8
            return [first, second, drafted[:2]]

    async def main() -> list[list[np.ndarray]]:
        async with aio.Client(server.target) as connected:
            assert [model.name for model in await connected.models()] == ["models/next"]
            return await asyncio.gather(*(one(connected, row) for row in x))

    for got, expected in zip(asyncio.run(main()), want, strict=True):
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_forks_files_lists_and_errors(server: Server, client: gdn_client.Client) -> None:
    x = tokens(client, 4)

    async def main() -> None:
        async with aio.Client(server.target) as connected, await connected.session(session_id="aio") as session:
            layer = session.layers[0]
            await session.prefill(layer, x[:3])
            await session.checkpoint("here")
            (child,) = await session.fork()
            async with child, await connected.import_state(await session.export_state()) as copy:
                want = await session.decode(layer, x[3])
                np.testing.assert_array_equal(await child.decode(layer, x[3]), want)
                np.testing.assert_array_equal(await copy.decode(layer, x[3]), want)
            assert "sessions/aio" in [one.name async for one in connected.sessions()]
            await session.restore("here")
            np.testing.assert_array_equal(await connected.batch([session]).decode(layer, x[3][None]), want[None])
            batch = connected.batch(await session.fork(2))
            assert (await connected.model("next")).name == "models/next"
            assert connected.target == server.target
            await batch.delete()
            with pytest.raises(gdn_client.NotFoundError, match="has ended"):
                await batch[1].decode(layer, x[3])
            with pytest.raises(gdn_client.NotFoundError):
                await connected.attach("nobody")

    asyncio.run(main())


def test_a_crash_loses_nothing(tmp_path: Path) -> None:
    with running(tmp_path, "--model", f"next={MODEL}") as server:
        with gdn_client.Client(server.target) as client, client.session() as plain:
            x, layer = tokens(client, 6), plain.layers[0]
            plain.prefill(layer, x[:5])
            want = plain.decode(layer, x[5])

        async def main() -> np.ndarray:
            async with aio.Client(server.target) as connected, await connected.session() as session:
                await session.prefill(layer, x[:5])
                server.kill()
                server.start()
                output = await session.decode(layer, x[5])
                assert session.stats.recreations == 1
                return output

        np.testing.assert_array_equal(asyncio.run(main()), want)


@pytest.mark.parametrize("length", [1, 3])  # as many tokens as the next step has, and more
def test_a_cancelled_step_never_was(server: Server, client: gdn_client.Client, length: int) -> None:
    x = tokens(client, 9)
    with client.session() as plain:
        layer = plain.layers[0]
        plain.prefill(layer, x[:5])
        want = plain.decode(layer, x[8])

    async def main() -> None:
        async with aio.Client(server.target) as connected, await connected.session() as session:
            await session.prefill(layer, x[:5])
            call = connected.connection.call
            taken = asyncio.Event()

            async def loses_the_reply(rpc: Rpc) -> Any:
                reply = await call(rpc)
                if rpc.method == "Decode" and not taken.is_set():
                    taken.set()
                    await asyncio.Event().wait()
                return reply

            connected.connection.call = loses_the_reply  # type: ignore[method-assign]
            task = asyncio.ensure_future(session.decode(layer, x[5 : 5 + length]))
            await asyncio.wait_for(taken.wait(), 30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            np.testing.assert_array_equal(await session.decode(layer, x[8]), want)
            assert session.token_count(layer) == 6

    asyncio.run(main())
