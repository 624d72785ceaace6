"""Steps in streams: the outputs of plain calls, whatever breaks in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MODEL
from server import Server, running

import gdn_client
from gdn_client import aio
from gdn_client.waiting import MessageStream


def tokens(client: gdn_client.Client, *lead: int) -> np.ndarray:
    size = client.models()[0].dims.hidden_size
    return np.random.default_rng(7).standard_normal((*lead, size)).astype(np.float32)


def plain_outputs(client: gdn_client.Client, x: np.ndarray) -> list[np.ndarray]:
    with client.session() as session:
        return [session.decode(session.layers[0], row) for row in x]


def same(got: list[np.ndarray], want: list[np.ndarray]) -> None:
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("window", [1, 3, 100])
def test_a_stream_gives_what_calls_give(
    client: gdn_client.Client, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    x = tokens(client, 20)
    want = plain_outputs(client, x)
    with client.session() as session:
        layer = session.layers[0]
        with monkeypatch.context() as without_calls:
            without_calls.setattr(client.connection, "call", None)
            same(list(session.decode_stream(layer, x, window=window)), want)
        assert session.token_count(layer) == 20
        assert list(session.decode_stream(layer, [])) == []
        with pytest.raises(ValueError, match="at least 1"):
            session.decode_stream(layer, x, window=0)


def test_so_does_a_batchs_with_any_lengths(client: gdn_client.Client) -> None:
    x = tokens(client, 3, 2, 2)  # steps, sessions, tokens
    one, two = ([client.session(affinity="a") for _ in range(2)] for _ in range(2))
    layer = one[0].layers[0]
    want = [client.batch(one).decode(layer, step) for step in x]
    same(list(client.batch(two).decode_stream(layer, x)), want)
    assert [session.token_count(layer) for session in two] == [6, 6]
    client.batch([*one, *two]).delete()


@pytest.mark.parametrize("window", [1, 2, 9])
def test_a_prompt_in_parts_is_its_prefills(
    client: gdn_client.Client, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    x = tokens(client, 30)
    parts = [x[:7], x[7:8], x[8:8], x[8:29]]
    with client.session() as plain, client.session() as session:
        layer = session.layers[0]
        want = [plain.prefill(layer, part) for part in parts]
        with monkeypatch.context() as without_calls:
            without_calls.setattr(client.connection, "call", None)
            same(list(session.prefill_stream(layer, parts, window=window)), want)
        same([session.decode(layer, x[29])], [plain.decode(layer, x[29])])
        with pytest.raises(ValueError, match="axis of tokens"):
            list(session.prefill_stream(layer, [x[0]]))
        bad = x.copy()
        bad[9] = np.nan
        got = session.prefill_stream(layer, [x[:4], bad[8:12], x[4:9]], window=window)
        same([next(got)], [plain.prefill(layer, x[:4])])
        with pytest.raises(gdn_client.InvalidArgumentError):
            next(got)
        assert session.token_count(layer) == 34
        same([session.decode(layer, x[3])], [plain.decode(layer, x[3])])


def test_a_prompt_in_parts_outlives_a_crash(tmp_path: Path) -> None:
    with (
        running(tmp_path, "--model", f"next={MODEL}") as server,
        gdn_client.Client(server.target) as client,
        client.session() as session,
        client.session() as plain,
    ):
        x = tokens(client, 24)
        parts = [x[at : at + 4] for at in range(0, 24, 4)]
        want = [plain.prefill(plain.layers[0], part) for part in parts]

        def interrupted() -> Iterator[np.ndarray]:
            yield from parts[:3]
            server.kill()
            server.start()
            yield from parts[3:]

        same(list(session.prefill_stream(session.layers[0], interrupted())), want)
        assert session.stats.replays > 0


def test_who_leaves_early_finds_what_was_under_way_taken(client: gdn_client.Client) -> None:
    x = tokens(client, 10)
    want = plain_outputs(client, x)
    with client.session() as session:
        layer = session.layers[0]
        for output in session.decode_stream(layer, x, window=4):
            np.testing.assert_array_equal(output, want[0])
            break
        assert session.token_count(layer) == 4
        same([session.decode(layer, x[4])], [want[4]])

        def breaks() -> Iterator[np.ndarray]:
            yield from x[5:7]
            raise KeyError("the caller's")

        with pytest.raises(KeyError):
            list(session.decode_stream(layer, breaks()))
        same([session.decode(layer, x[7])], [want[7]])


def test_none_is_taken_behind_one_that_is_refused(client: gdn_client.Client) -> None:
    x = tokens(client, 8)
    want = plain_outputs(client, x)
    bad = x.copy()
    bad[3, 5] = np.inf
    with client.session() as session:
        layer, got = session.layers[0], []
        with pytest.raises(gdn_client.InvalidArgumentError) as refused:
            for output in session.decode_stream(layer, bad):
                got.append(output)
        assert refused.value.reason == "NON_FINITE_INPUT"
        assert session.token_count(layer) == 3
        got += session.decode_stream(layer, x[3:])
        same(got, want)
        assert session.stats.replays == 0


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("before", [True, False])  # the break is before the step was taken, or behind
def test_a_stream_that_breaks_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool, before: bool
) -> None:
    flags = ["--disk-dir", str(tmp_path / "states")] if durable else []
    with (
        running(tmp_path, "--model", f"next={MODEL}", *flags) as server,
        gdn_client.Client(server.target) as client,
        client.session() as session,
    ):
        x = tokens(client, 24)
        want = plain_outputs(client, x)
        layer, replies = session.layers[0], 0
        receive = MessageStream.receive

        def breaks(stream: MessageStream) -> Any:
            nonlocal replies
            replies += 1
            if replies == 9:
                if not before:
                    receive(stream)
                stream._call.cancel()
                raise gdn_client.UnavailableError("the connection is gone")
            return receive(stream)

        monkeypatch.setattr(MessageStream, "receive", breaks)
        same(list(session.decode_stream(layer, x, window=5)), want)
        assert session.token_count(layer) == 24


def test_a_crash_loses_nothing(tmp_path: Path) -> None:
    with (
        running(tmp_path, "--model", f"next={MODEL}") as server,
        gdn_client.Client(server.target) as client,
        client.session() as session,
    ):
        x = tokens(client, 24)
        want = plain_outputs(client, x)

        def interrupted() -> Iterator[np.ndarray]:
            yield from x[:12]
            server.kill()
            server.start()
            yield from x[12:]

        same(list(session.decode_stream(session.layers[0], interrupted(), window=5)), want)
        assert session.stats.replays > 0


def test_asyncio_streams_too(server: Server, client: gdn_client.Client) -> None:
    x = tokens(client, 16)
    want = plain_outputs(client, x)
    with client.session() as plain:
        prompt = [plain.prefill(plain.layers[0], part) for part in (x[:4], x[4:7])]
    bad = x.copy()
    bad[6, 5] = np.inf

    async def main() -> None:
        async with aio.Client(server.target) as connected, await connected.session() as session:
            layer, got = session.layers[0], []
            async with await connected.session() as prefilled:
                parts = [part async for part in prefilled.prefill_stream(layer, [x[:4], x[4:7]])]
                same(parts, prompt)
            with pytest.raises(gdn_client.InvalidArgumentError):
                async for output in session.decode_stream(layer, bad, window=4):
                    got.append(output)
            assert session.token_count(layer) == 6
            async for output in connected.batch([session]).decode_stream(layer, x[6:12, None]):
                got.append(output[0])
            task = asyncio.ensure_future(anext(session.decode_stream(layer, x[12:], window=4)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            got += [await session.decode(layer, row) for row in x[12:]]
            same(got, want)

    asyncio.run(main())


def test_asyncio_streams_outlive_a_crash(tmp_path: Path) -> None:
    with running(tmp_path, "--model", f"next={MODEL}") as server, gdn_client.Client(server.target) as client:
        x = tokens(client, 24)
        want = plain_outputs(client, x)

        def interrupted() -> Iterator[np.ndarray]:
            yield from x[:12]
            server.kill()
            server.start()
            yield from x[12:]

        async def main() -> None:
            async with aio.Client(server.target) as connected, await connected.session() as session:
                stream = session.decode_stream(session.layers[0], interrupted(), window=5)
                same([output async for output in stream], want)

        asyncio.run(main())


def test_a_stream_of_steps_gives_what_steps_give(client: gdn_client.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    x = tokens(client, 30)
    one, two = ([client.session(affinity="a") for _ in range(2)] for _ in range(2))
    layer = one[0].layers[0]
    steps = [
        [gdn_client.StepRow(x[at : at + 1]), gdn_client.StepRow(x[at : at + at % 5], "prefill")] for at in range(12)
    ]
    want = [client.batch(one).step(layer, rows) for rows in steps]
    with monkeypatch.context() as without_calls:
        without_calls.setattr(client.connection, "call", None)
        got = list(client.batch(two).step_stream(layer, steps))
    for results, expected in zip(got, want, strict=True):
        same([result.output for result in results], [result.output for result in expected])
        assert [result.token_count for result in results] == [result.token_count for result in expected]
    client.batch([*one, *two]).delete()
