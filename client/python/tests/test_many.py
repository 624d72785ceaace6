"""Many sessions in one call: created, forked, reset and deleted. Servers fail, and older ones do not know the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from toy_server import LAYERS, ToyServer, aio_client_of, client_of, tokens

import gdn_client
from gdn_client.flow import Retry

LAYER, OTHER = LAYERS
FAULTS = ["away", "lose", "drop", "crash", "crash after", "roll back", "take state", "durable lose"]
BUSY = gdn_client.ResourceExhaustedError("later", reason="STATE_BUDGET_EXHAUSTED", retry_after=0.01)
FULL = gdn_client.ResourceExhaustedError("no", reason="QUOTA_EXCEEDED")
OLDER = pytest.mark.parametrize("knows_many", [True, False], ids=["", "an older server"])


def nth(method: str, *faults: str) -> Callable[[str], str]:
    """Faults of the method's next calls."""
    left = list(faults)
    return lambda called: left.pop(0) if called == method and left else ""


def same(got: Any, want: Any) -> None:
    np.testing.assert_array_equal(got, want)


def names_of(server: ToyServer) -> set[str]:
    return set(server.sessions)


@OLDER
def test_a_batch_is_made_and_deleted_in_one_call_each(knows_many: bool) -> None:
    server, x = ToyServer(knows_many=knows_many), tokens(3)
    client = client_of(server)
    with client.batch(client.create_sessions(3, "toy")) as batch:
        assert len({session.name for session in batch}) == len(server.sessions) == 3
        assert len({session._state.session.affinity for session in batch}) == 1
        got = batch.decode(LAYER, x)
    assert not server.sessions
    for row, twin in enumerate(client_of(ToyServer()).create_sessions(3, "toy")):
        same(got[row], twin.decode(LAYER, x[row]))
    made = ["CreateSessions"] if knows_many else ["CreateSessions", *["CreateSession"] * 3]
    ended = ["DeleteSessions"] if knows_many else ["DeleteSession"] * 3
    assert server.calls == ["GetServerInfo", *made, "Decode", *ended]
    with pytest.raises(gdn_client.NotFoundError, match="has ended"):
        batch.decode(LAYER, x)
    with pytest.raises(gdn_client.NotFoundError, match="has ended"):
        batch.__enter__()


def test_sessions_that_are_not_the_batchs_stay() -> None:
    server = ToyServer()
    client = client_of(server)
    one, two, three = client.create_sessions(ids=["a", "b", "c"], model="toy")
    with client.batch([one, client.attach(two.name), three]):
        one.detach()
    assert names_of(server) == {"a", "b"}
    with client.batch([one]):  # it has none to delete
        pass
    assert server.calls.count("DeleteSessions") == 1


@OLDER
@pytest.mark.parametrize("fault", ["away", "lose", "crash"])
def test_creations_and_deletions_are_repeated(fault: str, knows_many: bool) -> None:
    server = ToyServer(knows_many=knows_many)
    client = client_of(server)
    ends = "s" if knows_many else ""
    server.faults = nth(f"CreateSession{ends}", fault)
    sessions = client.create_sessions(3, "toy")
    assert names_of(server) == {session.id for session in sessions}
    server.faults = nth(f"DeleteSession{ends}", fault)
    client.batch(sessions).delete()
    assert not server.sessions


def test_more_than_fit_one_call_take_several() -> None:
    server = ToyServer()
    server.most = 4
    client = client_of(server)
    batch = client.batch(client.create_sessions(10, "toy"))
    assert (len(server.sessions), server.calls.count("CreateSessions")) == (10, 3)
    children = batch.fork(2)
    assert (len(server.sessions), server.calls.count("ForkSessions")) == (30, 5)
    assert [len(own) for own in children] == [2] * 10
    batch.reset()
    assert server.calls.count("ResetSessions") == 3
    batch.delete()
    assert server.calls.count("DeleteSessions") == 3
    assert len(server.sessions) == 20


def test_if_one_cannot_be_created_none_is_left() -> None:
    server = ToyServer()
    client = client_of(server)
    server.refuses = {"b": FULL}
    with pytest.raises(gdn_client.ResourceExhaustedError, match="no"):
        client.create_sessions(ids=["a", "b", "c"], model="toy")
    assert not server.sessions
    server.refuses = {"b": BUSY}
    client.create_sessions(ids=["a", "b", "c"], model="toy")
    assert names_of(server) == {"a", "b", "c"}
    with pytest.raises(gdn_client.AlreadyExistsError):
        client.create_sessions(ids=["x", "b"], model="toy", max_lifetime=3.0)
    assert names_of(server) == {"a", "b", "c"}


def test_sessions_that_are_started_fail_alone() -> None:
    server = ToyServer()
    client = client_of(server)
    one, lost, two = client.start_sessions([None, "gone", None], "toy")
    assert isinstance(one, gdn_client.Session) and isinstance(two, gdn_client.Session)
    assert isinstance(lost, gdn_client.GdnError)
    assert names_of(server) == {session.name.removeprefix("sessions/") for session in (one, two)}
    same(one.decode(LAYER, tokens(1)[0]), two.decode(LAYER, tokens(1)[0]))


def test_deletion_tries_all_and_tells_the_first_error() -> None:
    server = ToyServer()
    client = client_of(server)
    sessions = client.create_sessions(ids=["a", "b", "c", "d"], model="toy")
    del server.sessions["c"]
    server.refuses = {"b": gdn_client.PermissionDeniedError("no", reason="PERMISSION_DENIED")}
    with pytest.raises(gdn_client.PermissionDeniedError):
        client.batch([*sessions, sessions[0]]).delete()
    assert names_of(server) == {"b"}


@OLDER
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_forks_are_those_of_each_session(fault: str, durable: bool, knows_many: bool) -> None:
    server, calm, x = ToyServer(knows_many=knows_many), client_of(ToyServer()), tokens(20)
    client = client_of(server)
    batch = client.batch(client.create_sessions(3, "toy"))
    twins = calm.create_sessions(3, "toy")
    for at, one in enumerate((*batch, *twins)):
        one.prefill(LAYER, x[at % 3 : at % 3 + 4])
    batch[1].decode(OTHER, x[:3], draft=True)
    twins[1].decode(OTHER, x[:3], draft=True)
    server.faults = nth("ForkSessions" if knows_many else "ForkSession", fault)
    children = batch.fork(2, durable=durable)
    assert len(server.sessions) == 9
    assert server.calls.count("ForkSession") == 0 or not knows_many
    server.crash()
    for at, own in enumerate(children):
        for child, twin in zip(own, twins[at].fork(2), strict=True):
            if at == 1:
                child.accept(2)
                twin.accept(2)
            for layer in LAYERS:
                same(child.decode(layer, x[9]), twin.decode(layer, x[9]))
    for one, twin in zip(batch, twins, strict=True):
        if twin is not twins[1]:
            same(one.decode(OTHER, x[8]), twin.decode(OTHER, x[8]))


def test_each_session_may_have_its_own_number_of_children() -> None:
    server = ToyServer()
    client = client_of(server)
    batch = client.batch(client.create_sessions(3, "toy"))
    assert [len(own) for own in batch.fork([2, 1, 3])] == [2, 1, 3]
    assert (len(server.sessions), server.calls.count("ForkSessions")) == (9, 1)
    with pytest.raises(ValueError, match="there are 2 numbers of children, expected 3"):
        batch.fork([1, 1])


def test_if_one_cannot_be_forked_no_child_is_left() -> None:
    server = ToyServer()
    client = client_of(server)
    batch = client.batch(client.create_sessions(ids=["a", "b", "c"], model="toy"))
    server.refuses = {"b": FULL}
    with pytest.raises(gdn_client.ResourceExhaustedError):
        batch.fork(2)
    assert names_of(server) == {"a", "b", "c"}
    batch[0]._state.create = None
    del server.sessions["a"]
    with pytest.raises(gdn_client.SessionLostError):
        batch.fork(2)
    assert names_of(server) == {"b", "c"}


@OLDER
@pytest.mark.parametrize("fault", ["", *FAULTS])
@pytest.mark.parametrize("copies", [False, True])
def test_after_a_reset_sessions_begin_anew(fault: str, copies: bool, knows_many: bool) -> None:
    server, x = ToyServer(knows_many=knows_many), tokens(20)
    client = client_of(server)
    prefix = gdn_client.PromptPrefix(segments=[{"tokens": 3, "content_sha256": bytes(32)}])
    first = client.session("toy", prefix=prefix)
    for layer in LAYERS:
        first.prefill(layer, x[:3])
    assert first.keep_prefix(prefix)
    batch = client.batch([*client.create_sessions(2, "toy"), client.session("toy", prefix=prefix)])
    assert batch[2].prefix_tokens == 3
    for one in batch:
        one.prefill(LAYER, x[:4])
    batch[0].decode(OTHER, x[:3], draft=True)
    if copies:
        server.make_durable()
    server.faults = nth("ResetSessions", fault) if knows_many else nth("CreateSession", fault)
    batch.reset()
    assert [one.token_count(layer) for one in batch for layer in LAYERS] == [0] * 6
    assert batch[2].prefix_tokens == 0
    twin = client_of(ToyServer()).session("toy")
    want = [twin.decode(layer, x[10]) for layer in LAYERS]
    server.crash()
    for one in batch:
        for layer, output in zip(LAYERS, want, strict=True):
            same(one.decode(layer, x[10]), output)
    server.crash()
    more = [twin.decode(layer, x[11]) for layer in LAYERS]
    for one in batch:
        for layer, output in zip(LAYERS, more, strict=True):
            same(one.decode(layer, x[11]), output)


def test_a_reset_without_an_answer_is_to_be_made_again() -> None:
    server, x = ToyServer(), tokens(20)
    client = client_of(server)
    batch = client.batch(client.create_sessions(2, "toy"))
    batch.decode(LAYER, x[:2])
    for one in batch:
        one._state.retry = Retry(overall=0)
    server.faults = nth("ResetSessions", "lose")
    with pytest.raises(gdn_client.UnavailableError):
        batch.reset()
    with pytest.raises(gdn_client.FailedPreconditionError, match="reset it again"):
        batch.decode(LAYER, x[:2])
    batch.reset()
    twin = client_of(ToyServer()).session("toy")
    same(batch.decode(LAYER, x[3:5])[0], twin.decode(LAYER, x[3]))


def test_a_reset_that_is_refused_leaves_the_session_as_it_was() -> None:
    server, x = ToyServer(), tokens(20)
    client = client_of(server)
    batch = client.batch(client.create_sessions(ids=["a", "b"], model="toy"))
    batch.decode(LAYER, x[:2])
    server.refuses = {"a": gdn_client.PermissionDeniedError("no", reason="PERMISSION_DENIED")}
    with pytest.raises(gdn_client.PermissionDeniedError):
        batch.reset()
    assert [one.token_count(LAYER) for one in batch] == [1, 0]
    twin = client_of(ToyServer()).session("toy")
    twin.decode(LAYER, x[0])
    server.crash()
    same(batch[0].decode(LAYER, x[3]), twin.decode(LAYER, x[3]))


def test_a_step_that_arrives_behind_a_reset_is_taken_back() -> None:
    server, x = ToyServer(), tokens(20)
    client = client_of(server)
    (session,) = client.create_sessions(1, "toy")
    session._state.retry = Retry(overall=0)
    late: list[Any] = []
    call = server.call

    def hold(rpc: Any) -> Any:
        if rpc.method == "Prefill" and not late:
            late.append(rpc)
            raise gdn_client.UnavailableError("the connection is gone")
        return call(rpc)

    server.call = hold  # type: ignore[method-assign]
    with pytest.raises(gdn_client.UnavailableError):
        session.prefill(LAYER, x[:4])
    session._state.retry = Retry()
    client.batch([session]).reset()
    call(late[0])
    twin = client_of(ToyServer()).session("toy")
    same(session.decode(LAYER, x[5]), twin.decode(LAYER, x[5]))


def test_an_attached_session_of_an_older_server_cannot_be_reset() -> None:
    server = ToyServer(knows_many=False)
    client = client_of(server)
    client.session("toy", session_id="a").detach()
    attached = client.attach("a")
    with pytest.raises(gdn_client.SessionLostError, match="cannot be reset, and this client has not made it"):
        client.batch([attached]).reset()
    attached.decode(LAYER, tokens())


@OLDER
def test_asyncio_does_the_same(knows_many: bool) -> None:
    server, x = ToyServer(knows_many=knows_many), tokens(20)

    async def main() -> None:
        client = aio_client_of(server)
        async with client.batch(await client.create_sessions(3, "toy")) as batch:
            await batch.decode(LAYER, x[:3])
            children = await batch.fork(2)
            assert len(server.sessions) == 9
            await batch.reset()
            got = await batch.decode(LAYER, x[3:6])
        assert len(server.sessions) == 6
        await client.batch([child for own in children for child in own]).delete()
        assert not server.sessions
        twin = client_of(ToyServer()).session("toy")
        same(got[0], twin.decode(LAYER, x[3]))

    asyncio.run(main())


def test_a_real_server_does_it(client: gdn_client.Client, random: np.random.Generator) -> None:
    x = random.standard_normal((4, 3, client.models()[0].dims.hidden_size)).astype(np.float32)
    with client.batch(client.create_sessions(3)) as batch:
        layer = batch[0].layers[0]
        first = batch.decode(layer, x[0])
        children = client.batch([own[0] for own in batch.fork()])
        with children:
            same(children.decode(layer, x[1]), batch.decode(layer, x[1]))
        batch.reset()
        assert [session.token_count(layer) for session in batch] == [0] * 3
        same(batch.decode(layer, x[0]), first)
        names = {session.name for session in (*batch, *children)}
    assert not names & {session.name for session in client.sessions()}
