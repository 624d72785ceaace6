"""A sequence's recurrent states on a server, and batches of them.

    with client.session(model="qwen") as session:
        y = session.prefill(layer, x)           # [T, D]
        y = session.decode(layer, x_next)       # [D]

Every step is taken exactly once, whatever happens to its call; where the server crashes, what it has lost is sent again
(`session_flow`). Arrays are numpy's or torch's, and what comes back is of the same kind, on the same device.
Thread safety: a session is for one thread at a time, and for one batch; others may be used by other threads.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from gdn_client import array_flow, management, prefixes, session_flow, state_calls, streams
from gdn_client.errors import AbortedError, GdnError
from gdn_client.flow import Flow
from gdn_client.futures import StepFuture, settle
from gdn_client.inputs import Input
from gdn_client.notebook import table
from gdn_client.progress import bar
from gdn_client.proto.gdn.v1 import state_pb2
from gdn_client.proto.gdn.v1.session_pb2 import PromptPrefix
from gdn_client.requests import StateSnapshot, tier_name
from gdn_client.session_state import Parents, SessionState, new_id, step_options
from gdn_client.session_view import SUMMARY, SessionView
from gdn_client.steps import leading
from gdn_client.streams import DEFAULT_WINDOW, PREFILL_WINDOW, decode_pipeline, prefill_pipeline
from gdn_client.tensors import Array

if TYPE_CHECKING:
    from gdn_client.client import Client

T = TypeVar("T")


class Session(SessionView):
    """One session. Made by `Client.session`, `Client.attach`, `Client.import_state` and `Session.fork`.

    A context manager: it ends the session on the server, unless it was attached to or `detach` was called. After that,
    and after `delete` or `Client.delete_session`, every call of the object raises NotFoundError (SESSION_NOT_FOUND).
    Nothing is sent, and the session is not made anew.
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
        settle([self._state])
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
            x: `[T, D]` hidden states, a `Projected` or a `DeltaRule`, in float32, float16 or bfloat16.
            dtype: of the output: "float32", "float16", "bfloat16"; None: as `x`.
            allow_non_finite: let NaN and Inf through.
            timeout: seconds of each call; a prompt that no message holds takes several.
            progress: show a bar, which moves with each call; wants tqdm.

        Returns:
            `[T, D]`, of Projected `[T, HV * V]`, of DeltaRule `[T, HV, V]`; of x's kind.

        Raises:
            GdnError: the server's; what was sent before in this call has been taken, see `token_count`.

        """
        options = step_options(dtype, allow_non_finite=allow_non_finite)
        with bar(progress, "prefill", " tokens", leading(x)[0] if leading(x) else None) as told:
            limits = self._client.limits
            return self._run(array_flow.prefill(self._state, layer, x, limits, options, timeout, told))

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
            x: of one token `[D]`, or of several `[T, D]`; `Projected` and `DeltaRule` alike.
            draft: the tokens are computed and wait for `accept`.
            parents: of a draft that is a tree, the token that each follows, or -1 where it follows what came before.
            dtype: as in `prefill`.
            allow_non_finite: as in `prefill`.
            timeout: seconds.

        Returns:
            The output, with the axes of `x`.

        """
        options = step_options(dtype, draft=draft, parents=parents, allow_non_finite=allow_non_finite)
        return self._run(array_flow.decode([self._state], layer, x, options, timeout, alone=True))

    def prefill_future(
        self,
        layer: int,
        x: Input,
        *,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> StepFuture[Array]:
        """`prefill`, while the caller goes on; `futures` tells of order and failures."""
        options = step_options(dtype, allow_non_finite=allow_non_finite)
        client, state = self._client, self._state
        return client.start([state], lambda: array_flow.prefill(state, layer, x, client.limits, options, timeout))

    def decode_future(
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
        """`decode`, while the caller goes on; `futures` tells of order and failures."""
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
        """Decodes inputs that are known beforehand, several of them on their way at once.

        Args:
            layer: as in `prefill`.
            xs: of steps as `decode` takes them; looked at up to `window` steps ahead of what is given out, so it may
                not wait for outputs.
            window: steps under way, at least 1.
            dtype: as in `prefill`.
            allow_non_finite: as in `prefill`.
            timeout: seconds without a reply after which a step is asked for in a call of its own.

        Yields:
            The output of each, as `decode` gives it. Whoever leaves early finds steps taken that were under way.

        Raises:
            GdnError: of a step; those before it were taken, and none behind it.

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
        """Prefills a prompt that comes in parts, the next on its way while one is computed.

        Args:
            layer: as in `prefill`.
            parts: each `[T, D]`, a Projected or a DeltaRule, T of any size that one message holds; looked at up to
                `window` ahead of what is given out.
            window: parts under way, at least 1.
            dtype: as in `prefill`.
            allow_non_finite: as in `prefill`.
            timeout: as in `decode_stream`.

        Yields:
            The output of each part, with the bits of a `prefill` of it.

        Raises:
            GdnError: of a part; those before it were taken, and none behind it.

        """
        options = step_options(dtype, allow_non_finite=allow_non_finite)
        pipeline = prefill_pipeline(self._state, layer, options, window)
        return streams.outputs(self._client.connection, pipeline, parts, timeout)

    def accept(self, tokens: session_flow.Accepted) -> None:
        """So many tokens of every layer's draft become part of the session, or a path's; the others never were."""
        self._run(session_flow.accept([self._state], [tokens]))

    def fork(
        self, count: int = 1, *, ids: Sequence[str] = (), idle_ttl: float | None = None, durable: bool = False
    ) -> list[Session]:
        """New sessions that go on from here, states and drafts included; for beams and shared prompts.

        A child that a crash takes is made anew, if the inputs of all its tokens are kept: those of its parent, from a
        session's beginning, and its own.

        Args:
            count: of children.
            ids: theirs, as in `Client.session`, in place of `count`.
            idle_ttl: as in `Client.session`.
            durable: checkpoint each child that could not be made anew, where the server has a durable tier.

        """
        names = list(ids) or [new_id() for _ in range(count)]
        states = self._run(state_calls.fork(self._state, names, idle_ttl, durable))
        return [Session(self._client, state, owned=True) for state in states]

    def checkpoint(self, checkpoint_id: str = "") -> state_pb2.Checkpoint:
        """Makes the session durable as it is now; with an id beside later ones.

        Raises:
            FailedPreconditionError: NO_DURABLE_TIER, the server has no disk and no Redis.

        """
        return self._run(state_calls.checkpoint(self._state, checkpoint_id))

    def keep_prefix(self, prefix: PromptPrefix, tokens: int | None = None) -> bool:
        """Keeps the states for sessions whose prompt begins so (`prefixes`).

        Args:
            prefix: of the prompt; each of its segments was one prefill of every layer.
            tokens: where the layers are now, the end of a segment; None: at the end of the prefix.

        Returns:
            False: the server has no room for it, or keeps none.

        Raises:
            FailedPreconditionError: PREFIX_MISMATCH, the layers are not there, or came there by other calls.

        """
        return self._run(prefixes.keep_prefix(self._state, prefix, tokens))

    def restore(self, checkpoint_id: str = "") -> None:
        """Takes the session back to a checkpoint, "": the newest, under a new epoch.

        Raises:
            NotFoundError: CHECKPOINT_NOT_FOUND.
            SessionLostError: STATE_ROLLED_BACK, the checkpoint has fewer tokens than it had when it was made; the
                session goes on from these.

        """
        self._run(state_calls.restore(self._state, checkpoint_id))

    def checkpoints(self) -> list[state_pb2.Checkpoint]:
        """The named ones, by id, with the bytes that each takes."""
        return self._run(management.checkpoints(self.name, self._state.retry))

    def delete_checkpoint(self, checkpoint_id: str) -> None:
        """Ends a named checkpoint and frees its bytes.

        Raises:
            NotFoundError: CHECKPOINT_NOT_FOUND.

        """
        self._run(management.delete_checkpoint(self.name, checkpoint_id, self._state.retry))

    def evict(self, tier: str = "host") -> str:
        """Moves the states off the device now, to `tier` or a slower one; the next step brings them back.

        Returns:
            The tier that they are in: "host", "disk", "redis", or "device" where another call was faster.

        """
        return tier_name(self._run(management.evict(self.name, "", tier, self._state.retry)).tier)

    def export_state(self, *, progress: bool = False) -> bytes:
        """The session's states as a safetensors file, which `Client.import_state` takes; with a bar, if asked for."""
        with bar(progress, "export", "B") as told:
            return self._run(state_calls.export(self._state, told))

    def watch_state(self, *, every_tokens: int = 0, every: float | None = None) -> Iterator[StateSnapshot]:
        """The session's states now, and again as it advances; as `Client.watch_state`.

        The session is first brought back where the server has lost steps of it. The snapshots may be taken by another
        thread than the one that steps the session.

        Raises:
            AbortedError: EPOCH_MISMATCH, the server has lost steps meanwhile; step the session, and watch it again.

        """
        check, first, others = self._run(state_calls.watch(self._state, every_tokens, every))
        return itertools.chain([first], map(check, others))

    def delete(self) -> None:
        """Ends the session on the server; one that is gone already is none to complain of."""
        self._owned = False
        with contextlib.suppress(AbortedError):
            settle([self._state])
        self._client.connection.run(session_flow.delete(self._state))

    def detach(self) -> str:
        """The name; leaving the `with` block does not end the session any more."""
        self._owned = False
        return self.name


class Batch:
    """Sessions that are decoded in one call: all of one model, or of one operator spec.

    Between calls they may be stepped alone, or in other batches.
    """

    def __init__(self, client: Client, sessions: Iterable[Session]) -> None:
        self._client = client
        self._sessions = list(sessions)
        if not self._sessions:
            raise ValueError("a batch has at least one session")

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
        settle(session._state for session in self._sessions)
        return self._client.connection.run(flow)

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
            x: `[B, D]`, a token each, or `[B, T, D]`; `Projected` and `DeltaRule` alike.
            lengths: tokens of each row, 0 .. T; None: all T.
            draft: as in `Session.decode`.
            parents: as in `Session.decode`, of one tree for all rows or of one a row.
            dtype: as in `Session.prefill`.
            allow_non_finite: as in `Session.prefill`.
            timeout: seconds.

        Returns:
            The output, with the axes of `x`; zero beyond a row's length.

        Raises:
            GdnError: no session has moved.

        """
        states = [session._state for session in self._sessions]
        options = step_options(dtype, draft=draft, lengths=lengths, parents=parents, allow_non_finite=allow_non_finite)
        return self._run(array_flow.decode(states, layer, x, options, timeout))

    def decode_future(
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
        """`decode`, while the caller goes on: with another batch, or with layers of its own; see `futures`."""
        states = [session._state for session in self._sessions]
        options = step_options(dtype, draft=draft, lengths=lengths, parents=parents, allow_non_finite=allow_non_finite)
        return self._client.start(states, lambda: array_flow.decode(states, layer, x, options, timeout))

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
        """As `Session.decode_stream`, of inputs `[B, D]` or `[B, T, D]`."""
        states = [session._state for session in self._sessions]
        pipeline = decode_pipeline(states, layer, step_options(dtype, allow_non_finite=allow_non_finite), window)
        return streams.outputs(self._client.connection, pipeline, xs, timeout)

    def accept(self, tokens: Sequence[session_flow.Accepted]) -> None:
        """As `Session.accept` of each session, by `tokens[i]`."""
        self._run(session_flow.accept([session._state for session in self._sessions], list(tokens)))

    def delete(self) -> None:
        """Ends every session.

        Raises:
            GdnError: of the first session that could not be ended; the others were.

        """
        errors = []
        for session in self._sessions:
            try:
                session.delete()
            except GdnError as error:
                errors.append(error)
        if errors:
            raise errors[0]
