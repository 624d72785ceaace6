"""Snapshots: sessions start from them with the same bits, and a lost one is told of."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from conftest import MODEL
from server import Server, running

import gdn_client
from gdn_client import aio


def tokens(client: gdn_client.Client, random: np.random.Generator, *lead: int) -> np.ndarray:
    return random.standard_normal((*lead, client.models()[0].dims.hidden_size)).astype(np.float32)


def test_sessions_start_from_a_snapshot_with_its_bits(
    client: gdn_client.Client, server: Server, random: np.random.Generator
) -> None:
    x, y = tokens(client, random, 9), tokens(client, random, 4)
    with client.session() as owner:
        layer = owner.layers[0]
        for each in owner.layers:
            owner.prefill(each, x)
        taken = owner.snapshot("first")
        assert [one.token_count for one in taken.layers] == [9] * len(owner.layers)
        assert owner.snapshot("first") == taken  # the same request again
        outputs = [owner.decode(layer, token) for token in y]
        with client.session(snapshot="first") as other:
            assert other.token_count(layer) == 9
            for token, output in zip(y, outputs, strict=True):
                np.testing.assert_array_equal(other.decode(layer, token), output)
        with pytest.raises(gdn_client.AlreadyExistsError) as exists:
            owner.snapshot("first")
        assert exists.value.reason == "SNAPSHOT_EXISTS"
        with pytest.raises(ValueError, match="give nothing else"):
            client.session("next", snapshot="first")

        many = client.batch([owner, client.attach(owner.name)]).snapshot(["second", "first"])
        assert not isinstance(many[0], gdn_client.GdnError)
        assert many[0].key == "second"
        assert isinstance(many[1], gdn_client.AlreadyExistsError)
        with pytest.raises(ValueError, match="1 keys for 2 sessions"):
            client.batch([owner, client.attach(owner.name)]).snapshot(["second"])

        async def through_asyncio() -> np.ndarray:
            async with aio.Client(server.target) as twin, await twin.session(snapshot="first") as other:
                assert [one.key for one in (await twin.snapshots()).snapshots] == ["first", "second"]
                return await other.decode(layer, y[0])

        np.testing.assert_array_equal(asyncio.run(through_asyncio()), outputs[0])
    assert client.delete_snapshots(["first", "second"]) == [None, None]
    (missing,) = client.delete_snapshots(["first"])
    assert isinstance(missing, gdn_client.NotFoundError)


def test_a_lost_snapshot_is_told_in_the_next_answer_and_listed(tmp_path: Path, random: np.random.Generator) -> None:
    with running(tmp_path, "--model", f"next={MODEL}") as probe, gdn_client.Client(probe.target) as client:
        size = client.models()[0].state_bytes_per_session
    with (
        running(tmp_path, "--model", f"next={MODEL}", f"--snapshot-bytes={2 * size}") as server,
        gdn_client.Client(server.target) as client,
        client.session() as session,
    ):
        layer = session.layers[0]
        session.prefill(layer, tokens(client, random, 3))
        assert client.snapshot_loss_mark == 0
        for key in ("a", "b"):
            session.snapshot(key)
        mark = client.snapshot_loss_mark
        assert mark != 0
        session.snapshot("c")
        session.decode(layer, tokens(client, random))
        assert client.snapshot_loss_mark == mark + 1
        told = client.snapshots(lost_after=mark)
        assert [one.key for one in told.snapshots] == ["b", "c"]
        assert [one.key for one in told.lost] == ["a"]
        assert not told.lost_incomplete
        with pytest.raises(gdn_client.NotFoundError) as lost:
            client.session(snapshot="a")
        assert (lost.value.reason, lost.value.metadata["lost"]) == ("SNAPSHOT_NOT_FOUND", "evicted")
