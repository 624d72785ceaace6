"""Sessions in parts, on two servers with half of the heads each, beside one server of all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import MODEL
from server import Server, running
from toy_server import LAYERS, ToyServer, client_of, tokens

import gdn_client
from gdn_client.flow import Retry

TOTAL = 6


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    folders: list[Path] = [tmp_path_factory.mktemp("half") for _ in range(2)]
    flags = [("--model", f"next={MODEL}", "--heads", heads) for heads in ("0-2/6", "3-5/6")]
    with running(folders[0], *flags[0]) as low, running(folders[1], *flags[1]) as high:
        yield [low, high]


@pytest.fixture()
def sliced(halves: list[Server]) -> Iterator[gdn_client.SlicedClient]:
    # In the other order: heads decide.
    with gdn_client.SlicedClient([half.target for half in reversed(halves)]) as one:
        yield one


def hidden(client: gdn_client.Client, random: np.random.Generator, *lead: int) -> np.ndarray:
    return random.standard_normal((*lead, client.models()[0].dims.hidden_size)).astype(np.float32)


def close(got: np.ndarray, want: np.ndarray) -> None:
    assert got.shape == want.shape
    assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)


def patiently(call: Callable[[], np.ndarray]) -> np.ndarray:
    """The call, again while the server is on its way back."""
    for _ in range(200):
        try:
            return call()
        except gdn_client.UnavailableError:
            time.sleep(0.1)
    return call()


def test_the_model_is_whole_again(sliced: gdn_client.SlicedClient, client: gdn_client.Client) -> None:
    whole, one = sliced.models()[0], client.models()[0]
    assert whole.dims == one.dims
    assert whole.dims.value_heads == TOTAL
    assert whole.fingerprint == one.fingerprint
    assert not whole.HasField("heads")
    assert whole.weight_bytes > one.weight_bytes  # the norm's are in both
    assert sliced.model("next") == whole
    assert sliced.limits.max_draft == client.limits.max_draft


def test_sums_are_what_one_server_gives(
    sliced: gdn_client.SlicedClient, client: gdn_client.Client, random: np.random.Generator
) -> None:
    x = hidden(client, random, 60)
    with sliced.session() as parts, client.session() as whole:
        layer = parts.layers[0]
        close(parts.prefill(layer, x[:30]), whole.prefill(layer, x[:30]))
        for t in range(30, 50):
            close(parts.decode(layer, x[t]), whole.decode(layer, x[t]))
        close(parts.decode(layer, x[50:54], draft=True), whole.decode(layer, x[50:54], draft=True))
        parts.accept(3)
        whole.accept(3)
        assert parts.token_count(layer) == whole.token_count(layer) == 53
        (child,), (other,) = parts.fork(), whole.fork()
        close(child.decode(layer, x[53:56]), other.decode(layer, x[53:56]))
        assert parts.token_count(layer) == 53
        assert parts.decode(layer, x[53].astype(np.float16)).dtype == np.float16
        assert parts.decode(layer, x[54], dtype="float16").dtype == np.float16
        child.delete()
        other.delete()


def test_a_batch_is_its_sessions(
    sliced: gdn_client.SlicedClient, client: gdn_client.Client, random: np.random.Generator
) -> None:
    x = hidden(client, random, 2, 5)
    sessions = [sliced.session() for _ in range(2)]
    alone = [sliced.session() for _ in range(2)]
    layer = sessions[0].layers[0]
    batch = sliced.batch(sessions)
    y = batch.decode(layer, x, lengths=[5, 2])
    for row, length in enumerate([5, 2]):
        np.testing.assert_array_equal(y[row, :length], alone[row].decode(layer, x[row, :length]))
    batch.decode(layer, x[:, :2], draft=True)
    batch.accept([2, 0])
    assert [one.token_count(layer) for one in sessions] == [7, 2]
    for one in sessions + alone:
        one.delete()


def test_a_prompt_of_several_messages_is_one_sum(
    sliced: gdn_client.SlicedClient,
    client: gdn_client.Client,
    random: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens = 350
    x = hidden(client, random, tokens)
    limits = type(client.limits)()
    limits.CopyFrom(client.limits)
    limits.max_message_bytes = (64 << 10) + 100 * (x[0].nbytes + 50)
    monkeypatch.setattr(sliced._clients[0], "_limits", limits)
    with sliced.session() as parts, client.session() as whole:
        layer = parts.layers[0]
        close(parts.prefill(layer, x), whole.prefill(layer, x))
        assert parts.token_count(layer) == tokens


def test_what_all_refuse_moves_nothing(
    sliced: gdn_client.SlicedClient, client: gdn_client.Client, random: np.random.Generator
) -> None:
    x = hidden(client, random, 3)
    with sliced.session() as parts:
        layer = parts.layers[0]
        with pytest.raises(gdn_client.InvalidArgumentError, match="finite"):
            parts.prefill(layer, x * np.float32("nan"))
        with pytest.raises(TypeError, match="hidden states"):
            parts.decode(layer, gdn_client.Projected(x, x, x, x))  # type: ignore[arg-type]
        parts.prefill(layer, x)
        assert parts.token_count(layer) == 3


def test_a_server_that_was_away_catches_up_by_the_same_call(
    tmp_path: Path, halves: list[Server], client: gdn_client.Client, random: np.random.Generator
) -> None:
    x = hidden(client, random, 8)
    flags = ("--model", f"next={MODEL}", "--heads", "3-5/6", "--disk-dir", str(tmp_path / "states"))
    with running(tmp_path, *flags) as away:
        hasty = gdn_client.Retry(overall=0.3, first=0.05)
        clients = [gdn_client.Client(one.target, retry=hasty) for one in (halves[0], away)]
        with gdn_client.SlicedClient(clients) as sliced, sliced.session() as parts, client.session() as whole:
            layer = parts.layers[0]
            close(parts.prefill(layer, x[:4]), whole.prefill(layer, x[:4]))
            away.stop()
            with pytest.raises(gdn_client.UnavailableError):
                parts.decode(layer, x[4])
            assert [part.token_count(layer) for part in parts.parts] == [5, 4]
            with pytest.raises(gdn_client.AbortedError, match="make the same call again") as refused:
                parts.decode(layer, x[5])
            assert refused.value.reason == "PREVIOUS_SEGMENT_FAILED"
            away.start()
            for use in (parts.fork, parts.checkpoint, parts.export_states):  # of states that are apart
                with pytest.raises(gdn_client.AbortedError, match="make the same call again"):
                    use()
            close(patiently(lambda: parts.decode(layer, x[4])), whole.decode(layer, x[4]))
            assert parts.token_count(layer) == 5
            close(parts.decode(layer, x[5]), whole.decode(layer, x[5]))
        for one in clients:
            one.close()


def test_states_join_to_the_whole(
    sliced: gdn_client.SlicedClient, client: gdn_client.Client, random: np.random.Generator
) -> None:
    x = hidden(client, random, 12)
    with sliced.session() as parts, client.session() as whole:
        layer = parts.layers[0]
        want = whole.prefill(layer, x)
        parts.prefill(layer, x)
        assert [len(file) < len(whole.export_state()) for file in parts.export_states()] == [True, True]
        # A half takes its part of the whole's file.
        state = whole.export_state()
        ends = [part._client.import_state(state, session_id=f"half-{i}") for i, part in enumerate(parts.parts)]
        after = sum(one.decode(layer, x[0], dtype="float32").astype(np.float64) for one in ends)
        close(after.astype(np.float32), whole.decode(layer, x[0]))
        assert want.shape == x.shape
        for one in ends:
            one.delete()


def test_servers_that_are_not_one_model_are_refused(
    halves: list[Server], server: Server, client: gdn_client.Client
) -> None:
    for targets, message in (
        ([halves[0].target], "value heads 3 to 5 of models/next are on no server"),
        ([halves[1].target], "value heads 0 to 2 of models/next are on no server"),
        ([halves[0].target, server.target], "on two servers"),
    ):
        with gdn_client.SlicedClient(targets) as one, pytest.raises(ValueError, match=message):
            one.session()
    assert list(client.sessions()) == []
    with gdn_client.SlicedClient([server.target]) as one, one.session() as session:
        assert len(session.parts) == 1
    with pytest.raises(ValueError, match="no servers"):
        gdn_client.SlicedClient([])


def rows_of(x: np.ndarray) -> list[list[gdn_client.StepRow]]:
    """Two steps of three sessions: ragged, and with an acceptance of the first one's draft."""
    row = gdn_client.StepRow
    return [
        [row(x[:3], "draft"), row(x[3:9], "prefill"), row(x[9:10])],
        [row(x[10:12], accept=2), row(x[12:13]), row(x[13:13], "prefill")],
    ]


def test_a_step_is_the_calls_of_its_rows(
    sliced: gdn_client.SlicedClient, client: gdn_client.Client, random: np.random.Generator
) -> None:
    x = hidden(client, random, 20)
    sessions, alone = ([sliced.session() for _ in range(3)] for _ in range(2))
    batch, layer = sliced.batch(sessions), sessions[0].layers[0]
    for rows in rows_of(x):
        for row, result, other in zip(rows, batch.step(layer, rows), alone, strict=True):
            if row.accept is not None:
                other.accept(row.accept)
            if len(row.x) > 0:
                step = other.prefill if row.kind == "prefill" else other.decode
                options = {"draft": True} if row.kind == "draft" else {}
                np.testing.assert_array_equal(result.output, step(layer, row.x, **options))
            assert (result.token_count, result.error) == (other.token_count(layer), None)
    rounded = batch.step(layer, [gdn_client.StepRow(x[:1])] * 3, dtype="float16")
    assert all(result.output.dtype == np.float16 for result in rounded)
    with pytest.raises(ValueError, match="there are 1 rows, expected 3"):
        batch.step(layer, [gdn_client.StepRow(x[:1])])
    with pytest.raises(TypeError, match="hidden states"):
        batch.step(layer, [gdn_client.StepRow(gdn_client.Projected(x, x, x, x))] * 3)
    for one in sessions + alone:
        one.delete()


@pytest.mark.parametrize("fault", ["away", "lose", "drop", "crash", "crash after", "durable drop"])
@pytest.mark.parametrize("knows_step", [True, False])
def test_a_step_that_one_server_has_not_answered_is_completed(knows_step: bool, fault: str) -> None:
    x = tokens(20)
    servers = [ToyServer(knows_step=knows_step) for _ in range(2)]
    clients = [client_of(server) for server in servers]
    calm = client_of(ToyServer())
    with gdn_client.SlicedClient(clients) as sliced:
        sessions = [
            gdn_client.SlicedSession(sliced, [one.session("m", session_id=name) for one in clients]) for name in "abc"
        ]
        twins = [calm.session("m") for _ in range(3)]

        def patience(seconds: float) -> None:
            for session in sessions:
                for part in session.parts:
                    part._state.retry = Retry(overall=seconds)

        for rows in rows_of(x):
            left = [fault]
            method = "Step" if knows_step else "Decode"
            servers[1].faults = lambda called, m=method, f=left: f.pop() if called == m and f else ""
            batch = sliced.batch(sessions)
            patience(0)
            with pytest.raises(gdn_client.UnavailableError):
                batch.step(LAYERS[0], rows)
            patience(60)
            with pytest.raises(gdn_client.AbortedError, match="make the same call again"):
                batch.step(LAYERS[0], [gdn_client.StepRow(x[:1])] * 3)
            before = len(servers[0].calls)
            results = batch.step(LAYERS[0], rows)
            assert len(servers[0].calls) == before
            for row, result, twin in zip(rows, results, twins, strict=True):
                if row.accept is not None:
                    twin.accept(row.accept)
                if len(row.x) > 0:
                    kind = {"draft": True} if row.kind == "draft" else {}
                    one = (twin.prefill if row.kind == "prefill" else twin.decode)(LAYERS[0], row.x, **kind)
                    np.testing.assert_array_equal(result.output, (2 * one.astype(np.float64)).astype(np.float32))
