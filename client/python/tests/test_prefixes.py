"""Prompts that begin alike: sessions begin where the known part ends, with the same bits."""

from __future__ import annotations

import asyncio
import hashlib

import numpy as np
import pytest
from server import Server

import gdn_client
from gdn_client import aio

SEGMENT = 16


def hidden(client: gdn_client.Client, tokens: int) -> np.ndarray:
    size = client.models()[0].dims.hidden_size
    return np.random.default_rng(5).standard_normal((tokens, size)).astype(np.float32)


def prefill_all(session: gdn_client.Session, x: np.ndarray, begin: int, end: int) -> list[bytes]:
    """Each layer, in one prefill a segment."""
    outputs = []
    for first in range(begin, end, SEGMENT):
        for layer in session.layers:
            outputs.append(session.prefill(layer, x[first : min(first + SEGMENT, end)]).tobytes())
    return outputs


def test_a_prompt_is_cut_before_its_last_token_and_hashed_as_the_other_clients_do() -> None:
    prompt = gdn_client.prompt_prefix([1, 2, -3, 4, 5], 2, context="c")
    assert [segment.tokens for segment in prompt.segments] == [2, 2]
    text = b"\1\0\0\0\0\0\0\0c" + b"\1\0\0\0\0\0\0\0" + b"\2\0\0\0\0\0\0\0"
    assert prompt.segments[0].content_sha256 == hashlib.sha256(text).digest()
    assert prompt.segments[1].content_sha256.hex() == (
        "8ba8b6b93ca6c9adb9574e109415113eef6a425014587b891450bc3b4f3e3968"
    )
    assert not gdn_client.prompt_prefix([1, 2], 2).segments
    assert not gdn_client.prompt_prefix([], 2).segments
    assert len(gdn_client.prompt_prefix([1, 2, 3], 2).segments) == 1
    assert [segment.tokens for segment in gdn_client.first_segments(prompt, 3).segments] == [2]
    assert gdn_client.first_segments(prompt, 4) == prompt
    assert not gdn_client.first_segments(prompt, 1).segments
    with pytest.raises(ValueError, match="at least 1"):
        gdn_client.prompt_prefix([1, 2], 0)


def test_a_session_begins_behind_the_longest_known_prefix_with_the_same_bits(client: gdn_client.Client) -> None:
    x = hidden(client, 60)
    ids = list(range(100, 160))
    prompt = gdn_client.prompt_prefix(ids, SEGMENT)
    with client.session(prefix=prompt) as computed:
        assert computed.prefix_tokens == 0
        prefill_all(computed, x, 0, 32)
        assert computed.keep_prefix(prompt, 32)
        prefill_all(computed, x, 32, 48)
        assert computed.keep_prefix(prompt)
        rest = prefill_all(computed, x, 48, 60)
        decoded = [computed.decode(layer, x[0]).tobytes() for layer in computed.layers]
    with client.session(prefix=prompt) as known:
        assert known.prefix_tokens == 48
        assert known.token_count(known.layers[0]) == 48
        assert prefill_all(known, x, 48, 60) == rest
        assert [known.decode(layer, x[0]).tobytes() for layer in known.layers] == decoded
    with client.session(prefix=gdn_client.prompt_prefix([*ids[:40], 7, *ids[41:]], SEGMENT)) as other:
        assert other.prefix_tokens == 32
    assert client.info().prefixes.hits >= 2
    assert client.drop_prefixes() == 2
    with client.session(prefix=prompt) as again:
        assert again.prefix_tokens == 0


def test_what_is_not_the_prefix_is_refused(client: gdn_client.Client) -> None:
    x = hidden(client, 48)
    prompt = gdn_client.prompt_prefix(range(48), SEGMENT)
    with client.session() as session:
        prefill_all(session, x, 0, 16)
        with pytest.raises(gdn_client.FailedPreconditionError) as refused:
            session.keep_prefix(prompt)
        assert refused.value.reason == "PREFIX_MISMATCH"
        for layer in session.layers:
            session.decode(layer, x[0])
        with pytest.raises(gdn_client.FailedPreconditionError):
            session.keep_prefix(gdn_client.prompt_prefix(range(18), 17))
    assert client.call_tokens(x) >= SEGMENT


def delete_elsewhere(client: gdn_client.Client, session: gdn_client.Session) -> None:
    """Deletes it by another client: one that deletes a session makes it anew no more."""
    with gdn_client.Client(client.target) as other:
        other.delete_session(session.name)


def test_a_session_that_is_lost_begins_no_further_on_and_tells_where_its_prefix_is_gone(
    client: gdn_client.Client,
) -> None:
    x = hidden(client, 48)
    prompt = gdn_client.prompt_prefix(range(500, 549), SEGMENT)
    with client.session() as first:
        prefill_all(first, x, 0, 16)
        assert first.keep_prefix(prompt, 16)
    session = client.session(prefix=prompt)
    assert session.prefix_tokens == 16
    prefill_all(session, x, 16, 32)
    assert session.keep_prefix(prompt, 32)  # what is known from here on is longer
    with client.session() as computed:
        prefill_all(computed, x, 0, 32)
        expected = prefill_all(computed, x, 32, 48)
    delete_elsewhere(client, session)  # as if the server had lost it
    assert prefill_all(session, x, 32, 48) == expected
    assert session.stats.recreations == 1
    client.drop_prefixes()
    delete_elsewhere(client, session)
    with pytest.raises(gdn_client.SessionLostError):
        session.decode(session.layers[0], x[0])
    session.delete()


def test_the_client_for_asyncio_does_the_same(server: Server) -> None:
    async def run() -> None:
        async with aio.Client(server.target) as client:
            size = (await client.models())[0].dims.hidden_size
            x = np.ones((SEGMENT, size), np.float32)
            assert await client.call_tokens(x) >= SEGMENT
            prompt = gdn_client.prompt_prefix(range(900, 900 + SEGMENT + 1), SEGMENT)
            async with await client.session(prefix=prompt) as session:
                assert session.prefix_tokens == 0
                for layer in session.layers:
                    await session.prefill(layer, x)
                assert await session.keep_prefix(prompt)
            async with await client.session(prefix=prompt) as session:
                assert session.prefix_tokens == SEGMENT
            assert await client.drop_prefixes() >= 1

    asyncio.run(run())
