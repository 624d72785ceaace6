"""Sessions against a live server: steps, drafts, forks, checkpoints, batches, and what is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import gdn_client
from gdn_client import DecayKind, DeltaRule, OperatorSpec, StepRow
from gdn_client.steps import cut

SPEC = OperatorSpec(key_heads=2, value_heads=4, key_dim=16, value_dim=8, layer_count=2)


def hidden(client: gdn_client.Client, random: np.random.Generator, *lead: int) -> np.ndarray:
    size = client.models()[0].dims.hidden_size
    return random.standard_normal((*lead, size)).astype(np.float32)


def operands(random: np.random.Generator, *lead: int) -> DeltaRule:
    q, k = (random.standard_normal((*lead, 2, 16)).astype(np.float32) for _ in range(2))
    return DeltaRule(
        q=q / np.linalg.norm(q, axis=-1, keepdims=True),
        k=k / np.linalg.norm(k, axis=-1, keepdims=True),
        v=random.standard_normal((*lead, 4, 8)).astype(np.float32),
        g=-random.uniform(0.01, 0.5, (*lead, 4)).astype(np.float32),
        beta=random.uniform(0, 1, (*lead, 4)).astype(np.float32),
    )


def recurrence(x: DeltaRule) -> np.ndarray:
    """The gated delta rule in float64, token by token; g is [T, 4], or [T, 4, 16]."""
    q, k = (np.repeat(np.asarray(t, np.float64), 2, axis=1) for t in (x.q, x.k))
    state = np.zeros((4, 16, 8))
    output = np.empty((q.shape[0], 4, 8))
    for t in range(q.shape[0]):
        state *= np.exp(np.float64(x.g[t])).reshape(4, -1, 1)
        update = x.beta[t][:, None] * (x.v[t] - np.einsum("hkv,hk->hv", state, k[t]))
        state += np.einsum("hk,hv->hkv", k[t], update)
        output[t] = np.einsum("hkv,hk->hv", state, q[t]) / 4.0
    return output


def close(got: np.ndarray, want: np.ndarray) -> None:
    assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)


def test_what_the_server_says(client: gdn_client.Client) -> None:
    assert client.info().version
    assert [model.name for model in client.models()] == ["models/next"]
    assert client.model("next").gdn_layers == client.models()[0].gdn_layers
    assert client.limits.max_batch > 0


def test_prefill_then_decode_is_one_prefill(client: gdn_client.Client, random: np.random.Generator) -> None:
    x = hidden(client, random, 30)
    with client.session() as session, client.session("next") as whole:
        layer = session.layers[-1]
        parts = [
            session.prefill(layer, x[:20]),
            session.decode(layer, x[20:22]),
            *(session.decode(layer, t)[None] for t in x[22:]),
        ]
        close(np.concatenate(parts), whole.prefill(layer, x))
        assert session.token_count(layer) == 30
        assert session.name in repr(session)
    with pytest.raises(gdn_client.NotFoundError) as refused:
        client.attach(session.name)
    assert refused.value.reason == "SESSION_NOT_FOUND"


def test_the_delta_rule_is_the_recurrence(client: gdn_client.Client, random: np.random.Generator) -> None:
    x = operands(random, 12)
    with client.session(operator=SPEC) as session:
        head = session.prefill(1, cut(x, 0, 9))
        tail = session.decode(1, cut(x, 9, 12))
        close(np.concatenate([head, tail]), recurrence(x))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_comes_back_has_the_dtype_of_what_went(
    client: gdn_client.Client, random: np.random.Generator, dtype: str
) -> None:
    x = hidden(client, random, 4).astype(dtype)
    with client.session() as session:
        assert session.prefill(session.layers[0], x).dtype == dtype
        assert session.decode(session.layers[0], x[0], dtype="float32").dtype == np.float32
        with pytest.raises(TypeError, match="expected float32, float16 or bfloat16: convert the array with"):
            session.decode(session.layers[0], x[0].astype(np.float64))


def test_a_batch_is_its_sessions(client: gdn_client.Client, random: np.random.Generator) -> None:
    x = hidden(client, random, 3, 2)
    together, alone = ([client.session(affinity="a") for _ in range(3)] for _ in range(2))
    layer = together[0].layers[0]
    try:
        batch = client.batch(together)
        got = batch.decode(layer, x, lengths=[2, 1, 0])
        for row, session in enumerate(alone[:2]):
            length = [2, 1][row]
            np.testing.assert_array_equal(got[row, :length], session.decode(layer, x[row, :length]))
        assert [session.token_count(layer) for session in batch] == [2, 1, 0]
        assert batch.decode(layer, x[:, 0]).shape == x[:, 0].shape
        with pytest.raises(ValueError, match="a row a session"):
            batch.decode(layer, x[:2])
    finally:
        for session in together + alone:
            session.delete()


def test_a_draft_is_accepted_in_part(client: gdn_client.Client, random: np.random.Generator) -> None:
    x = hidden(client, random, 5)
    with client.session() as drafting, client.session() as plain:
        layer = plain.layers[0]
        drafted = drafting.decode(layer, x[:4], draft=True)
        assert drafting.token_count(layer) == 0
        drafting.accept(2)
        np.testing.assert_array_equal(drafted[:2], plain.decode(layer, x[:2]))
        np.testing.assert_array_equal(drafting.decode(layer, x[4]), plain.decode(layer, x[4]))
        assert drafting.token_count(layer) == 3


def test_a_path_of_a_tree_is_accepted(client: gdn_client.Client, random: np.random.Generator) -> None:
    x = hidden(client, random, 7)
    parents, path = [-1, 0, 0, 2, 2, -1], [0, 2, 4]
    with client.session() as drafting, client.session() as plain, client.session() as other:
        layer = plain.layers[0]
        drafted = drafting.decode(layer, x[:6], parents=parents)
        assert drafting.token_count(layer) == 0
        drafting.accept(path)
        for token in path:
            np.testing.assert_array_equal(drafted[token], plain.decode(layer, x[token]))
        np.testing.assert_array_equal(drafting.decode(layer, x[6]), plain.decode(layer, x[6]))
        assert drafting.token_count(layer) == 4

        batch = client.batch([drafting, other])
        rows = np.stack([x[:6], x[1:]])
        batch.decode(layer, rows, parents=[parents, [-1, 0, 1, 1, 1, 1]])
        batch.accept([[5], 2])
        assert [drafting.token_count(layer), other.token_count(layer)] == [5, 2]
        batch.decode(layer, rows, parents=parents)
        with pytest.raises(gdn_client.GdnError, match="path"):
            batch.accept([[0, 4], 0])
        batch.accept([[], 0])
        assert [drafting.token_count(layer), other.token_count(layer)] == [5, 2]


@pytest.mark.parametrize("knows_step", [True, False], ids=["step", "older methods"])
def test_a_step_has_the_bits_of_its_rows_alone(
    client: gdn_client.Client, random: np.random.Generator, knows_step: bool
) -> None:
    client.abilities.step = knows_step
    x = hidden(client, random, 400)
    together, alone = ([client.session(affinity="a") for _ in range(3)] for _ in range(2))
    layer = together[0].layers[0]
    batch = client.batch(together)
    first = batch.step(layer, [StepRow(x[:300], "prefill"), StepRow(x[300:304], "draft"), StepRow(x[304:306])])
    same = np.testing.assert_array_equal
    same(first[0].output, alone[0].prefill(layer, x[:300]))
    same(first[1].output, alone[1].decode(layer, x[300:304], draft=True))
    same(first[2].output, alone[2].decode(layer, x[304:306]))
    assert [row.token_count for row in first] == [300, 0, 2]
    parents = [-1, 0, 0]
    rows = [StepRow(x[310:313], "draft", parents), StepRow(x[320:340], "prefill", accept=[0, 1]), StepRow(x[341:341])]
    second = batch.step(layer, rows)
    alone[1].accept(2)
    same(second[0].output, alone[0].decode(layer, x[310:313], parents=parents))
    same(second[1].output, alone[1].prefill(layer, x[320:340]))
    assert [row.token_count for row in second] == [300, 22, 2]
    bad = [StepRow(x[350:351]), StepRow(np.full_like(x[:1], np.nan)), StepRow(x[352:353])]
    third = batch.step(layer, bad, partial_ok=True)
    assert [row.error and row.error.reason for row in third] == ["DRAFT_PENDING", "NON_FINITE_INPUT", None]
    same(third[2].output, alone[2].decode(layer, x[352:353]))
    with pytest.raises(gdn_client.FailedPreconditionError) as refused:
        batch.step(layer, bad[:1] + rows[2:] * 2)
    assert refused.value.reason == "DRAFT_PENDING"
    client.batch(together + alone).delete()


def test_a_step_takes_every_kind_of_input(client: gdn_client.Client, random: np.random.Generator) -> None:
    x = operands(random, 12)
    with client.session(operator=SPEC) as session, client.session(operator=SPEC) as other:
        rows = [StepRow(cut(x, 0, 9), "prefill"), StepRow(cut(x, 0, 4), "draft")]
        head = client.batch([session, other]).step(1, rows)
        rows = [StepRow(cut(x, 9, 12)), StepRow(cut(x, 3, 12), "prefill", accept=3)]
        tail = client.batch([session, other]).step(1, rows)
        close(np.concatenate([head[0].output, tail[0].output]), recurrence(x))
        close(np.concatenate([head[1].output[:3], tail[1].output]), recurrence(x))
    with client.session() as session:
        dims, layer = client.models()[0].dims, session.layers[0]
        channels = 2 * dims.key_heads * dims.key_dim + dims.value_heads * dims.value_dim
        sizes = {"mixed_qkv": channels, "z": dims.value_heads * dims.value_dim, "b": dims.value_heads}
        tensors = {name: random.standard_normal((6, size)).astype(np.float32) for name, size in sizes.items()}
        projected = gdn_client.Projected(**tensors, a=tensors["b"])
        with client.session() as alone:
            (result,) = client.batch([session]).step(layer, [StepRow(projected, "prefill")])
            np.testing.assert_array_equal(result.output, alone.prefill(layer, projected))


def test_forks_and_checkpoints(client: gdn_client.Client, random: np.random.Generator) -> None:
    x = hidden(client, random, 6)
    with client.session() as session:
        layer = session.layers[0]
        session.prefill(layer, x[:4])
        with session.fork()[0] as child:
            np.testing.assert_array_equal(child.decode(layer, x[4]), session.decode(layer, x[4]))
        session.checkpoint("here")
        first = session.decode(layer, x[5])
        session.restore("here")
        assert session.token_count(layer) == 5
        assert session.epoch == 2
        np.testing.assert_array_equal(session.decode(layer, x[5]), first)


def test_decays_may_be_by_channel(client: gdn_client.Client, random: np.random.Generator) -> None:
    x = dataclasses.replace(operands(random, 12), g=-random.uniform(0.01, 3, (12, 4, 16)).astype(np.float32))
    kda = OperatorSpec(
        key_heads=2, value_heads=4, key_dim=16, value_dim=8, layer_count=2, decay=DecayKind.DECAY_KIND_PER_CHANNEL
    )
    with client.session(operator=kda) as session:
        parts = [session.prefill(1, cut(x, 0, 8)), session.decode(1, cut(x, 8, 12))]
        close(np.concatenate(parts), recurrence(x))
        with pytest.raises(gdn_client.InvalidArgumentError, match=r"g has shape \[2, 4\], expected \[2, 4, 16\]"):
            session.prefill(1, dataclasses.replace(cut(x, 0, 2), g=np.zeros((2, 4), np.float32)))
        assert session.token_count(1) == 12


def test_a_state_travels_as_a_file(client: gdn_client.Client, random: np.random.Generator) -> None:
    x = hidden(client, random, 8)
    with client.session() as session:
        layer = session.layers[1]
        session.prefill(layer, x[:7])
        with client.import_state(session.export_state()) as copy:
            np.testing.assert_array_equal(copy.decode(layer, x[7]), session.decode(layer, x[7]))


def test_a_prompt_that_no_message_holds_goes_in_parts(
    client: gdn_client.Client, random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = hidden(client, random, 50)
    with client.session() as session, client.session() as whole:
        layer = session.layers[0]
        want = whole.prefill(layer, x)
        limits = type(client.limits)()
        limits.CopyFrom(client.limits)
        limits.max_message_bytes = (64 << 10) + 7 * (x[0].nbytes + 50)
        monkeypatch.setattr(client, "_limits", limits)
        close(session.prefill(layer, x), want)
        assert session.token_count(layer) == 50


def test_errors_say_the_reason(client: gdn_client.Client, random: np.random.Generator) -> None:
    with client.session() as session:
        x = hidden(client, random, 2)
        x[1, 3] = np.nan
        with pytest.raises(gdn_client.InvalidArgumentError) as refused:
            session.prefill(session.layers[0], x)
        assert refused.value.reason == "NON_FINITE_INPUT"
        assert refused.value.reason in str(refused.value)
        assert session.token_count(session.layers[0]) == 0
        with pytest.raises(gdn_client.InvalidArgumentError) as refused:
            session.decode(999, x[0])
        assert refused.value.reason == "LAYER_NOT_GDN"
    with pytest.raises(gdn_client.NotFoundError) as refused:
        client.session("nobody")
    assert refused.value.reason == "MODEL_NOT_FOUND"


def test_sessions_are_listed_page_by_page(client: gdn_client.Client) -> None:
    made = [client.session(operator=SPEC, session_id=f"list-{i}") for i in range(3)]
    try:
        names = [session.name for session in client.sessions()]
        assert {session.name for session in made} <= set(names)
        assert names == sorted(names)
    finally:
        client.batch(made).delete()


def test_nobody_at_the_address() -> None:
    with (
        gdn_client.Client("unix:/nowhere/gdn.sock", retry=gdn_client.Retry(overall=0.2)) as client,
        pytest.raises(gdn_client.UnavailableError),
    ):
        client.info()


def test_a_token_does_not_go_in_the_clear() -> None:
    with pytest.raises(ValueError, match="in the clear"):
        gdn_client.Client("example.org:50061", token="secret")
    with pytest.raises(ValueError, match="expected one of them"):
        gdn_client.Client(token="a", token_file="b")
