"""A sequence's recurrent states on a server, and batches of such sequences.

    with client.session(model="qwen") as session:
        y = session.prefill(layer, x)           # [T, D]
        y = session.decode(layer, x_next)       # [D]

The server applies every step exactly once, even if the call is repeated. If the server crashes, the client sends the
lost steps again (`session_flow`). Arrays are numpy's or torch's. Outputs are of the same kind as the inputs and on the
same device.
Thread safety: a session may be used by one thread at a time, and by one batch. Other threads may use other sessions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from gdn_client import (
    array_flow,
    management,
    many,
    prefixes,
    recovery,
    session_flow,
    snapshots,
    state_calls,
    streams,
    waiting,
)
from gdn_client.errors import AbortedError, GdnError
from gdn_client.flow import Flow
from gdn_client.futures import StepFuture, settle
from gdn_client.inputs import Input
from gdn_client.mixed import MixedStep
from gdn_client.notebook import table
from gdn_client.pipeline import DEFAULT_WINDOW, PREFILL_WINDOW, decode_pipeline, prefill_pipeline, step_pipeline
from gdn_client.progress import bar
from gdn_client.proto.gdn.v1 import snapshot_pb2, state_pb2
from gdn_client.proto.gdn.v1.session_pb2 import PromptPrefix
from gdn_client.requests import StateSnapshot, tier_name
from gdn_client.session_state import Parents, SessionState, new_id, step_options
from gdn_client.session_view import SUMMARY, SessionView
from gdn_client.step_call import StepCall, StepResults, StepRow
from gdn_client.steps import leading
from gdn_client.tensors import Array

if TYPE_CHECKING:
    from gdn_client.client import Client

T = TypeVar("T")


class Session(SessionView):
    """The states of one sequence. Made by `Client.session`, `Client.attach`, `Client.import_state` and `Session.fork`.

    A `with` block deletes the session on the server at its end, except after `detach` and for sessions that were
    attached. Calls after the end raise NotFoundError (SESSION_NOT_FOUND) and send nothing. The same holds after
    `delete` and `Client.delete_session`.
    """

    def __init__(self, client: Client, state: SessionState, owned: bool) -> None:
        self._client = client
        self._state = state
        self._owned = owned
        client.known.add(state)

    def __enter__(self) -> Session:
        self._state.check_not_ended()
        return self

    def __exit__(self, *_: object) -> None:
        if self._owned:
            self.delete()

    def _run(self, flow: Flow[T]) -> T:
        settle([self._state])  # threads only
        self._state.check_not_ended()
        return self._client.connection.run(flow)

    def prefill(
        self,
        layer: int,
        x: Input,
        *,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
        progress: bool = False,
    ) -> Array:
        """Advances a layer by a prompt, or by a part of one.

        Args:
            layer: index of a Gated DeltaNet layer of the model.
            x: hidden states `[T, D]` for T tokens and hidden size D, or a `Projected` or a `DeltaRule`. The dtype is
                float32, float16 or bfloat16.
            dtype: dtype of the output, "float32", "float16" or "bfloat16". None: the dtype of `x`.
            allow_non_finite: accept NaN and Inf in the input.
            timeout: seconds for each call. A prompt that is too long for one message takes several calls.
            progress: show a progress bar that advances with each call. Needs tqdm.

        Returns:
            `[T, D]`, or `[T, HV * V]` for Projected, or `[T, HV, V]` for DeltaRule. A numpy array or a torch tensor,
            like `x`.

        Raises:
            GdnError: the server refused a call. Earlier calls of this prefill were applied; see `token_count`.

        """
        options = step_options(dtype, allow_non_finite=allow_non_finite)
        with bar(progress, "prefill", " tokens", leading(x)[0] if leading(x) else None) as told:
            most = self._client.limits_within(timeout).max_message_bytes
            abilities = self._client.abilities
            return self._run(array_flow.prefill(self._state, layer, x, most, abilities, options, timeout, told))

    def decode(
        self,
        layer: int,
        x: Input,
        *,
        draft: bool = False,
        parents: Sequence[int] | None = None,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> Array:
        """Advances a layer by one token, or by a few.

        Args:
            layer: as in `prefill`.
            x: `[D]` for one token, or `[T, D]` for several. `Projected` and `DeltaRule` likewise.
            draft: compute the tokens as a draft, which waits for `accept`.
            parents: for a draft that is a tree, the index of the token that each token follows. -1 means that the token
                follows the accepted tokens.
            dtype: as in `prefill`.
            allow_non_finite: as in `prefill`.
            timeout: seconds.

        Returns:
            The output, with the axes of `x`.

        """
        options = step_options(dtype, draft=draft, parents=parents, allow_non_finite=allow_non_finite)
        return self._run(array_flow.decode([self._state], layer, x, options, timeout, alone=True))

    def prefill_future(  # threads only
        self,
        layer: int,
        x: Input,
        *,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> StepFuture[Array]:
        """Starts `prefill` on another thread and returns a future.

        Steps of one session run in the order in which they were asked for. If a step fails, later steps are not applied
        and raise AbortedError (PREVIOUS_SEGMENT_FAILED).
        """
        options = step_options(dtype, allow_non_finite=allow_non_finite)
        client, state = self._client, self._state

        def start() -> Flow[Array]:
            most = client.limits_within(timeout).max_message_bytes
            return array_flow.prefill(state, layer, x, most, client.abilities, options, timeout)

        return client.start([state], start)

    def decode_future(  # threads only
        self,
        layer: int,
        x: Input,
        *,
        draft: bool = False,
        parents: Sequence[int] | None = None,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> StepFuture[Array]:
        """Starts `decode` on another thread and returns a future. Order and failures are as in `prefill_future`."""
        options = step_options(dtype, draft=draft, parents=parents, allow_non_finite=allow_non_finite)
        state = self._state
        return self._client.start([state], lambda: array_flow.decode([state], layer, x, options, timeout, alone=True))

    def decode_stream(
        self,
        layer: int,
        xs: Iterable[Input],
        *,
        window: int = DEFAULT_WINDOW,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> Iterator[Array]:
        """Decodes inputs that are known in advance. Several steps are in flight at once.

        Args:
            layer: as in `prefill`.
            xs: inputs of steps, each as `decode` takes it. The client reads up to `window` inputs ahead of the outputs,
                so the iterable must not wait for outputs.
            window: most steps in flight, at least 1.
            dtype: as in `prefill`.
            allow_non_finite: as in `prefill`.
            timeout: seconds without a reply after which the client repeats a step in a call of its own.

        Yields:
            The output of each step, as `decode` returns it. If you stop early, steps that are in flight are still
            applied.

        Raises:
            GdnError: a step failed. Steps before it were applied, and later steps were not.

        """
        options = step_options(dtype, allow_non_finite=allow_non_finite)
        pipeline = decode_pipeline([self._state], layer, options, window, alone=True)
        return streams.outputs(self._client.connection, pipeline, xs, timeout)

    def prefill_stream(
        self,
        layer: int,
        parts: Iterable[Input],
        *,
        window: int = PREFILL_WINDOW,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> Iterator[Array]:
        """Prefills a prompt that arrives in parts. The next part travels while the server computes the one before.

        Args:
            layer: as in `prefill`.
            parts: parts of the prompt, each `[T, D]`, a Projected or a DeltaRule. Each part must fit one message. The
                client reads up to `window` parts ahead of the outputs.
            window: most parts in flight, at least 1.
            dtype: as in `prefill`.
            allow_non_finite: as in `prefill`.
            timeout: as in `decode_stream`.

        Yields:
            The output of each part, with the bits that `prefill` of the part returns.

        Raises:
            GdnError: a part failed. Parts before it were applied, and later parts were not.

        """
        options = step_options(dtype, allow_non_finite=allow_non_finite)
        pipeline = prefill_pipeline(self._state, layer, options, window)
        return streams.outputs(self._client.connection, pipeline, parts, timeout)

    def accept(self, tokens: session_flow.Accepted) -> None:
        """Accepts tokens of every layer's draft, and drops the others.

        `tokens` is the number of first tokens to accept. For a draft that is a tree it is a path, a list of token
        indices.
        """
        self._run(session_flow.accept([self._state], [tokens]))

    def fork(
        self, count: int = 1, *, ids: Sequence[str] = (), idle_ttl: float | None = None, durable: bool = False
    ) -> list[Session]:
        """Creates sessions that continue from this one, with its states and drafts.

        Forks are useful for beams and shared prompts. After a crash the client recreates a child that the server has
        lost. This needs all inputs of the child and of its parent, from the start of the parent.

        Args:
            count: number of children.
            ids: ids of the children, as in `Client.session`. They replace `count`.
            idle_ttl: as in `Client.session`.
            durable: checkpoint each child that the client could not recreate, if the server has a durable tier.

        """
        names = list(ids) or [new_id() for _ in range(count)]
        states = self._run(state_calls.fork(self._state, names, idle_ttl, durable))
        return [Session(self._client, state, owned=True) for state in states]

    def checkpoint(self, checkpoint_id: str = "") -> state_pb2.Checkpoint:
        """Makes the session durable as it is now. A checkpoint with an id is kept beside later ones.

        Raises:
            FailedPreconditionError: NO_DURABLE_TIER, the server has neither a disk nor Redis.

        """
        return self._run(state_calls.checkpoint(self._state, checkpoint_id))

    def snapshot(self, key: str) -> snapshot_pb2.Snapshot:
        """Takes a read-only snapshot of the session as it is now. `Client.session` starts sessions from it.

        The server may evict it later; `Client.snapshot_loss_mark` then changes.

        Args:
            key: 1 to 128 characters of [A-Za-z0-9._~-].

        Raises:
            AlreadyExistsError: SNAPSHOT_EXISTS, the key is in use.
            ResourceExhaustedError: there is no room.

        """
        return self._run(snapshots.take(self._state, key))

    def keep_prefix(self, prefix: PromptPrefix, tokens: int | None = None) -> bool:
        """Keeps the states on the server, for sessions whose prompt starts with the same segments.

        Args:
            prefix: segments of the session's prompt. Each of them must have been one prefill of every layer.
            tokens: number of tokens that the layers have seen, which is the end of a segment. None: all segments.

        Returns:
            False if the server has no room for the states, or keeps no prefixes.

        Raises:
            FailedPreconditionError: PREFIX_MISMATCH, the layers are at another token, or came there by other calls.

        """
        kept = prefix if tokens is None else prefixes.first_segments(prefix, tokens)
        return self._run(state_calls.keep_prefix(self._state, kept))

    def restore(self, checkpoint_id: str = "") -> None:
        """Takes the session back to a checkpoint, under a new epoch. "" is the newest checkpoint.

        Raises:
            NotFoundError: CHECKPOINT_NOT_FOUND.
            SessionLostError: STATE_ROLLED_BACK, the checkpoint now has fewer tokens than when it was made. The session
                continues from there.

        """
        self._run(state_calls.restore(self._state, checkpoint_id))

    def checkpoints(self) -> list[state_pb2.Checkpoint]:
        """Lists the named checkpoints, sorted by id, each with the bytes that it takes."""
        return self._run(management.checkpoints(self.name, self._state.retry))

    def delete_checkpoint(self, checkpoint_id: str) -> None:
        """Deletes a named checkpoint and frees its bytes.

        Raises:
            NotFoundError: CHECKPOINT_NOT_FOUND.

        """
        self._run(management.delete_checkpoint(self.name, checkpoint_id, self._state.retry))

    def evict(self, tier: str = "host") -> str:
        """Moves the states off the device now, to `tier` or a slower one. The next step brings them back.

        Returns:
            The tier that holds the states, "host", "disk" or "redis". "device" if another call has brought them back.

        """
        return tier_name(self._run(management.evict(self.name, "", tier, self._state.retry)).tier)

    def export_state(self, *, progress: bool = False) -> bytes:
        """Returns the states as the bytes of a safetensors file for `Client.import_state`. `progress` shows a bar."""
        with bar(progress, "export", "B") as told:
            return self._run(state_calls.export(self._state, told))

    def watch_state(self, *, every_tokens: int = 0, every: float | None = None) -> Iterator[StateSnapshot]:
        """Yields the session's states now and again as it advances. Arguments are those of `Client.watch_state`.

        If the server has lost steps of the session, the client restores them first. Another thread than the one that
        steps the session may read the snapshots.

        Raises:
            AbortedError: EPOCH_MISMATCH, the server has lost steps since. Step the session, and watch it again.

        """
        return waiting.snapshots(self._run, state_calls.watch(self._state, every_tokens, every))

    def delete(self) -> None:
        """Deletes the session on the server. It is no error if the session does not exist any more."""
        self._owned = False
        with contextlib.suppress(AbortedError):  # threads only
            settle([self._state])
        self._client.connection.run(recovery.delete(self._state))

    def detach(self) -> str:
        """Returns the name. The end of the `with` block then does not delete the session."""
        self._owned = False
        return self.name


class Batch:
    """Sessions that are stepped in one call. All of them have the same model, or the same operator dimensions.

    Between calls you may step the sessions one by one, or in other batches. A `with` block ends with
    one call that deletes all sessions that were neither attached nor detached.
    """

    def __init__(self, client: Client, sessions: Iterable[Session]) -> None:
        self._client = client
        self._sessions = list(sessions)
        if not self._sessions:
            raise ValueError("a batch has at least one session")
        self._states = [session._state for session in self._sessions]

    def __enter__(self) -> Batch:
        for state in self._states:
            state.check_not_ended()
        return self

    def __exit__(self, *_: object) -> None:
        self._end([session for session in self._sessions if session._owned])

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions)

    def __getitem__(self, row: int) -> Session:
        return self._sessions[row]

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} sessions at {self._client.target}>"

    def _repr_html_(self) -> str:
        caption = f"Batch of {len(self)} sessions at {self._client.target}, as this side knows them"
        return table(caption, SUMMARY, [session.summary() for session in self._sessions])

    def _run(self, flow: Flow[T]) -> T:
        settle(self._states)  # threads only
        return self._client.connection.run(flow)

    def snapshot(self, keys: Sequence[str]) -> list[snapshot_pb2.Snapshot | GdnError]:
        """Takes a snapshot of each session in one call, as `Session.snapshot`, under the key in its place.

        Returns:
            The snapshot or the error of each session. Sessions that the server has lost are not restored by this call.

        """
        return self._run(snapshots.take_many(self._states, keys))

    def decode(
        self,
        layer: int,
        x: Input,
        *,
        lengths: Sequence[int] | None = None,
        draft: bool = False,
        parents: Parents | None = None,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> Array:
        """Advances a layer of every session.

        Args:
            layer: as in `Session.prefill`.
            x: `[B, D]` for one token in each row, or `[B, T, D]`. `Projected` and `DeltaRule` likewise.
            lengths: number of tokens in each row, 0 .. T. None: every row has T.
            draft: as in `Session.decode`.
            parents: as in `Session.decode`. Either one tree for all rows, or one tree for each row.
            dtype: as in `Session.prefill`.
            allow_non_finite: as in `Session.prefill`.
            timeout: seconds.

        Returns:
            The output, with the axes of `x`. It is zero beyond a row's length.

        Raises:
            GdnError: the server refused the call, and no session has advanced. After UnavailableError or
                DeadlineExceededError the server may have applied it; repeat the same call.

        """
        options = step_options(dtype, draft=draft, lengths=lengths, parents=parents, allow_non_finite=allow_non_finite)
        return self._run(array_flow.decode(self._states, layer, x, options, timeout))

    def decode_future(  # threads only
        self,
        layer: int,
        x: Input,
        *,
        lengths: Sequence[int] | None = None,
        draft: bool = False,
        parents: Parents | None = None,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> StepFuture[Array]:
        """Starts `decode` on another thread and returns a future.

        Meanwhile you can compute other layers or decode another batch. Order and failures are as in
        `Session.prefill_future`.
        """
        options = step_options(dtype, draft=draft, lengths=lengths, parents=parents, allow_non_finite=allow_non_finite)
        return self._client.start(self._states, lambda: array_flow.decode(self._states, layer, x, options, timeout))

    def decode_stream(
        self,
        layer: int,
        xs: Iterable[Input],
        *,
        window: int = DEFAULT_WINDOW,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> Iterator[Array]:
        """Decodes as `Session.decode_stream` does, with inputs `[B, D]` or `[B, T, D]`."""
        pipeline = decode_pipeline(self._states, layer, step_options(dtype, allow_non_finite=allow_non_finite), window)
        return streams.outputs(self._client.connection, pipeline, xs, timeout)

    def step(
        self,
        layer: int,
        rows: Sequence[StepRow],
        *,
        x: Input | None = None,
        partial_ok: bool = False,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> StepResults:
        """Advances a layer of every session in one call, each by its own number of tokens and in its own way.

        `rows[i]` is for session i. Its output has the bits of `prefill` or `decode` of this session alone. A row's
        acceptance and its tokens are applied together, or not at all.

        If the server does not know this call (version 0.1.0), the client makes several others in its place. After an
        error some rows may then have been applied; the same call again goes on with the others. An acceptance is then
        that of all layers, and the steps of the other layers must accept the same tokens.

        Args:
            layer: as in `Session.prefill`.
            rows: a `StepRow` for each session, with inputs of one kind, dtype and library. All rows together must fit
                one message.
            x: the packed input, `[N, D]` for N tokens of all rows, one after the other. Each row's own `x` is then
                its number of tokens. This is quicker than an input for each row.
            partial_ok: let each row fail alone, with its `error`. The call then raises no GdnError.
            dtype: as in `Session.prefill`.
            allow_non_finite: as in `Session.prefill`.
            timeout: seconds.

        Returns:
            A `StepResult` for each row: its output, `[T, D]` for hidden states, and the layer's token count. `output`
            of the whole has the outputs of all rows, one after the other.

        Raises:
            ValueError: there is not one row for each session, or inputs differ in more than their number of tokens.
            GdnError: without `partial_ok`, as in `decode`.

        """
        options = step_options(dtype, allow_non_finite=allow_non_finite)
        call = StepCall(layer, rows, options, partial_ok, timeout, x)
        return self._run(MixedStep(self._states, call, self._client.abilities).applied())

    def step_future(  # threads only
        self,
        layer: int,
        rows: Sequence[StepRow],
        *,
        x: Input | None = None,
        partial_ok: bool = False,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> StepFuture[StepResults]:
        """Starts `step` on another thread and returns a future. Order and failures are as in `Session.prefill_future`.

        With `partial_ok`, rows that fail alone do not fail the future.
        """
        options = step_options(dtype, allow_non_finite=allow_non_finite)
        call = StepCall(layer, rows, options, partial_ok, timeout, x)
        step = MixedStep(self._states, call, self._client.abilities)
        return self._client.start(self._states, step.applied)

    def step_stream(
        self,
        layer: int,
        steps: Iterable[Sequence[StepRow]],
        *,
        window: int = DEFAULT_WINDOW,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> Iterator[StepResults]:
        """Makes steps as `step` does, with inputs that are known in advance. Several steps are in flight at once.

        Args:
            layer: as in `Session.prefill`.
            steps: for each step, a `StepRow` for each session. The rows decode or prefill; drafts and acceptances
                depend on outputs, so they need `step`.
            window: as in `Session.decode_stream`.
            dtype: as in `Session.prefill`.
            allow_non_finite: as in `Session.prefill`.
            timeout: as in `Session.decode_stream`.

        Yields:
            The results of each step, as `step` returns them. If you stop early, steps that are in flight are still
            applied.

        Raises:
            GdnError: a step failed. Steps before it were applied, and later steps were not. If the server does not know
                steps, some of the failed step's rows may have been applied, as in `step`.
            ValueError: a step has rows that `step` would refuse, or that draft or accept.

        """
        options, abilities = step_options(dtype, allow_non_finite=allow_non_finite), self._client.abilities
        pipeline = step_pipeline(self._states, layer, options, abilities, window)
        return streams.outputs(self._client.connection, pipeline, steps, timeout)

    def accept(self, tokens: Sequence[session_flow.Accepted]) -> None:
        """Accepts tokens of each session's drafts. `tokens[i]` is for session i, as in `Session.accept`."""
        self._run(session_flow.accept(self._states, list(tokens)))

    def fork(
        self, count: int | Sequence[int] = 1, *, idle_ttl: float | None = None, durable: bool = False
    ) -> list[list[Session]]:
        """Creates sessions that continue from each session, in one call. Works as `Session.fork`.

        Args:
            count: number of children of each session, or a number for each session.
            idle_ttl: as in `Session.fork`.
            durable: as in `Session.fork`.

        Returns:
            The children of each session.

        Raises:
            GdnError: a session could not be forked. No child is left.
            ValueError: there is not one number for each session.

        """
        counts = [count] * len(self) if isinstance(count, int) else list(count)
        if len(counts) != len(self):
            raise ValueError(f"there are {len(counts)} numbers of children, expected {len(self)}, one for each session")
        ids = [[new_id() for _ in range(number)] for number in counts]
        children = self._run(many.fork(self._states, ids, idle_ttl, durable, self._many()))
        return [[Session(self._client, state, owned=True) for state in own] for own in children]

    def reset(self) -> None:
        """Sets every session back to zero tokens, in one call. Sessions keep their ids and named checkpoints.

        A session that started from a prefix has no prefix then. Servers that do not know resets (version 0.1.0) get a
        new session under the same id.

        Raises:
            GdnError: error of the first session that could not be reset. The call tries to reset all of them. After
                UnavailableError or DeadlineExceededError it may have been applied; reset again, or delete the batch.

        """
        self._run(many.reset(self._states, self._many()))

    def delete(self) -> None:
        """Deletes every session, in one call.

        Raises:
            GdnError: error of the first session that could not be deleted. The call tries to delete all of them.

        """
        self._end(self._sessions)

    def _many(self) -> many.Many:
        return many.Many(self._client.limits.max_batch, self._client.abilities, self._states[0].retry)

    def _end(self, sessions: Sequence[Session]) -> None:
        for session in sessions:
            session._owned = False
            with contextlib.suppress(AbortedError):  # threads only
                settle([session._state])
        for session in sessions:
            session._state.ended = True
        if sessions:
            self._client.connection.run(many.delete([session._state for session in sessions], self._many()))
