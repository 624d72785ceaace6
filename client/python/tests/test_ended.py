"""An object that has ended is refused by every method, and makes nothing anew on the server."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from toy_server import LAYERS, ToyServer, aio_client_of, client_of, tokens

import gdn_client
from gdn_client import aio

L = LAYERS[0]
PROMPT = gdn_client.PromptPrefix(segments=[{"tokens": 3, "content_sha256": bytes(32)}])
USES: dict[str, Callable[[Any], Any]] = {
    "__enter__": lambda session: session.__enter__(),
    "prefill": lambda session: session.prefill(L, tokens(2)),
    "decode": lambda session: session.decode(L, tokens()),
    "prefill_future": lambda session: session.prefill_future(L, tokens(2)).result(),
    "decode_future": lambda session: session.decode_future(L, tokens()).result(),
    "prefill_stream": lambda session: list(session.prefill_stream(L, [tokens(2)])),
    "decode_stream": lambda session: list(session.decode_stream(L, [tokens()])),
    "accept": lambda session: session.accept(0),
    "fork": lambda session: session.fork(),
    "checkpoint": lambda session: session.checkpoint(),
    "checkpoints": lambda session: session.checkpoints(),
    "delete_checkpoint": lambda session: session.delete_checkpoint("a"),
    "restore": lambda session: session.restore(),
    "keep_prefix": lambda session: session.keep_prefix(PROMPT),
    "snapshot": lambda session: session.snapshot("k"),
    "evict": lambda session: session.evict(),
    "export_state": lambda session: session.export_state(),
    "watch_state": lambda session: next(session.watch_state(every_tokens=1)),
}
WITHOUT_A_CALL = {"delete", "detach", "summary", "token_count"}  # to delete twice is no error
ENDS: dict[str, Callable[[gdn_client.Client, gdn_client.Session], Any]] = {
    "with": lambda client, session: session.__exit__(None, None, None),
    "delete": lambda client, session: session.delete(),
    "Batch.delete": lambda client, session: client.batch([session]).delete(),
    "Client.delete_session": lambda client, session: client.delete_session(session.id),
}


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


@pytest.mark.parametrize("end", ENDS)
def test_a_session_that_has_ended_is_refused_by_every_method(end: str) -> None:
    assert public(gdn_client.Session) - WITHOUT_A_CALL == USES.keys() - {"__enter__"}
    for name, use in USES.items():
        server = ToyServer()
        client = client_of(server)
        session = client.session("m")
        session.prefill(L, tokens(3))
        ENDS[end](client, session)
        asked = len(server.calls)
        with pytest.raises(gdn_client.NotFoundError, match="has ended") as refused:
            use(session)
        assert refused.value.reason == "SESSION_NOT_FOUND", name
        assert not server.sessions, name
        assert server.calls[asked:] == [], name
        session.delete()


def test_a_batch_with_a_session_that_has_ended_moves_none() -> None:
    server = ToyServer()
    client = client_of(server)
    one, other = client.session("m"), client.session("m")
    batch = client.batch([one, other])
    other.delete()
    for use in (
        lambda: batch.decode(L, tokens(2)),
        lambda: batch.decode_future(L, tokens(2)).result(),
        lambda: list(batch.decode_stream(L, [tokens(2)])),
        lambda: batch.accept([0, 0]),
        lambda: batch.snapshot(["k", "l"]),
    ):
        with pytest.raises(gdn_client.NotFoundError, match="has ended"):
            use()
    assert one.token_count(L) == 0
    assert list(server.sessions) == [one.id]


def test_asyncio_refuses_it_too() -> None:
    names = public(aio.Session) - WITHOUT_A_CALL
    assert names == USES.keys() - {"__enter__", "prefill_future", "decode_future"}

    async def use(name: str, deletes: bool) -> None:
        server = ToyServer()
        client = aio_client_of(server)
        session = await client.session("m")
        await session.prefill(L, tokens(3))
        await (client.delete_session(session.id) if deletes else session.__aexit__())
        with pytest.raises(gdn_client.NotFoundError, match="has ended"):
            if name == "__enter__":
                await session.__aenter__()
            else:
                made = getattr(session, name)(*ARGUMENTS.get(name, ()))
                if inspect.isawaitable(made):
                    await made
                else:
                    await anext(made)
        assert not server.sessions, name

    for name in (*names, "__enter__"):
        asyncio.run(use(name, False))
        asyncio.run(use(name, True))


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "prefill": (L, tokens(2)),
    "decode": (L, tokens()),
    "prefill_stream": (L, [tokens(2)]),
    "decode_stream": (L, [tokens()]),
    "accept": (0,),
    "delete_checkpoint": ("a",),
    "keep_prefix": (PROMPT,),
    "snapshot": ("k",),
}


def test_a_session_that_others_have_ended_is_brought_back_and_one_that_is_kept_goes_on() -> None:
    server = ToyServer()
    client = client_of(server)
    with client.session("m") as kept:
        kept.prefill(L, tokens(3))
        kept.detach()
    kept.decode(L, tokens())
    with client.attach(kept.name) as attached:
        attached.decode(LAYERS[1], tokens())
    attached.decode(LAYERS[1], tokens())
    other = client.session("m")
    other.decode(L, tokens())
    client_of(server).delete_session(other.id)  # for all that this client can tell, the server has crashed
    other.decode(L, tokens())
    assert len(server.sessions) == 2


def test_a_delete_that_is_refused_leaves_the_session_usable() -> None:
    server = ToyServer()
    client = client_of(server)
    session = client.session("m")
    call = server.call

    def refuse(rpc: Any) -> Any:
        if rpc.method == "DeleteSession":
            raise gdn_client.PermissionDeniedError("no", reason="PERMISSION_DENIED")
        return call(rpc)

    server.call = refuse  # type: ignore[method-assign]
    with pytest.raises(gdn_client.PermissionDeniedError):
        client.delete_session(session.id)
    session.decode(L, tokens())
