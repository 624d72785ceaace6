"""Sessions and batches for asyncio: the twins of `session.Session` and `session.Batch`.

Thread safety: as that of a session, for one task at a time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from gdn_client import aio_streams, array_flow, management, prefixes, session_flow, state_calls
from gdn_client.flow import Flow
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
    from gdn_client.aio import Client

T = TypeVar("T")


class Session(SessionView):
    """A session for asyncio. Its methods have the arguments, results and errors of those of `gdn_client.Session`."""

    def __init__(self, client: Client, state: SessionState, owned: bool) -> None:
        self._client = client
        self._state = state
        self._owned = owned
        client.known.add(state)

    async def __aenter__(self) -> Session:
        self._state.check_not_ended()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._owned:
            await self.delete()

    async def _run(self, flow: Flow[T]) -> T:
        self._state.check_not_ended()
        return await self._client.connection.run(flow)

    async def prefill(
        self,
        layer: int,
        x: Input,
        *,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
        progress: bool = False,
    ) -> Array:
        """Advances a layer by a prompt `[T, ..]`."""
        options = step_options(dtype, allow_non_finite=allow_non_finite)
        limits = await self._client.limits()
        with bar(progress, "prefill", " tokens", leading(x)[0] if leading(x) else None) as told:
            flow = array_flow.prefill(self._state, layer, x, limits, options, timeout, told)
            return await self._run(flow)

    async def decode(
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
        """Advances a layer by one token, or by `[T, ..]`."""
        options = step_options(dtype, draft=draft, parents=parents, allow_non_finite=allow_non_finite)
        flow = array_flow.decode([self._state], layer, x, options, timeout, alone=True)
        return await self._run(flow)

    def decode_stream(
        self,
        layer: int,
        xs: Iterable[Input],
        *,
        window: int = DEFAULT_WINDOW,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[Array]:
        """Decodes inputs that are known in advance, with several steps in flight at once. Use it with `async for`."""
        options = step_options(dtype, allow_non_finite=allow_non_finite)
        pipeline = decode_pipeline([self._state], layer, options, window, alone=True)
        return aio_streams.outputs(self._client.connection, pipeline, xs, timeout)

    def prefill_stream(
        self,
        layer: int,
        parts: Iterable[Input],
        *,
        window: int = PREFILL_WINDOW,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[Array]:
        """Prefills a prompt that arrives in parts. The next part travels while the server computes the one before.

        Use it with `async for`.
        """
        options = step_options(dtype, allow_non_finite=allow_non_finite)
        pipeline = prefill_pipeline(self._state, layer, options, window)
        return aio_streams.outputs(self._client.connection, pipeline, parts, timeout)

    async def accept(self, tokens: session_flow.Accepted) -> None:
        """Accepts the first `tokens` tokens of every layer's draft, or the tokens of a path, and drops the others."""
        await self._run(session_flow.accept([self._state], [tokens]))

    async def fork(
        self, count: int = 1, *, ids: Sequence[str] = (), idle_ttl: float | None = None, durable: bool = False
    ) -> list[Session]:
        """Creates sessions that continue from this one."""
        names = list(ids) or [new_id() for _ in range(count)]
        states = await self._run(state_calls.fork(self._state, names, idle_ttl, durable))
        return [Session(self._client, state, owned=True) for state in states]

    async def checkpoint(self, checkpoint_id: str = "") -> state_pb2.Checkpoint:
        """Makes the session durable as it is now."""
        return await self._run(state_calls.checkpoint(self._state, checkpoint_id))

    async def keep_prefix(self, prefix: PromptPrefix, tokens: int | None = None) -> bool:
        """Keeps the states on the server, for sessions whose prompt starts with the same segments."""
        return await self._run(prefixes.keep_prefix(self._state, prefix, tokens))

    async def restore(self, checkpoint_id: str = "") -> None:
        """Takes the session back to a checkpoint."""
        await self._run(state_calls.restore(self._state, checkpoint_id))

    async def checkpoints(self) -> list[state_pb2.Checkpoint]:
        """Lists the named checkpoints."""
        return await self._run(management.checkpoints(self.name, self._state.retry))

    async def delete_checkpoint(self, checkpoint_id: str) -> None:
        """Deletes a named checkpoint and frees its bytes."""
        await self._run(management.delete_checkpoint(self.name, checkpoint_id, self._state.retry))

    async def evict(self, tier: str = "host") -> str:
        """Moves the states off the device now, and returns the tier that holds them."""
        return tier_name((await self._run(management.evict(self.name, "", tier, self._state.retry))).tier)

    async def export_state(self, *, progress: bool = False) -> bytes:
        """Returns the states as the bytes of a safetensors file."""
        with bar(progress, "export", "B") as told:
            return await self._run(state_calls.export(self._state, told))

    async def watch_state(self, *, every_tokens: int = 0, every: float | None = None) -> AsyncIterator[StateSnapshot]:
        """Yields the session's states now and again as it advances."""
        flow = state_calls.watch(self._state, every_tokens, every)
        check, first, others = await self._run(flow)
        yield first
        async for snapshot in others:
            yield check(snapshot)

    async def delete(self) -> None:
        """Deletes the session on the server."""
        self._owned = False
        await self._client.connection.run(session_flow.delete(self._state))

    def detach(self) -> str:
        """Returns the name. The end of the `async with` block then does not delete the session."""
        self._owned = False
        return self.name


class Batch:
    """Sessions that are decoded in one call, as in `gdn_client.Batch`."""

    def __init__(self, client: Client, sessions: Iterable[Session]) -> None:
        self._client = client
        self._sessions = list(sessions)
        if not self._sessions:
            raise ValueError("a batch has at least one session")

    def __repr__(self) -> str:
        return f"<asyncio Batch of {len(self)} sessions at {self._client.connection.target}>"

    def _repr_html_(self) -> str:
        caption = f"Batch of {len(self)} sessions at {self._client.connection.target}, as this side knows them"
        return table(caption, SUMMARY, [session.summary() for session in self._sessions])

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions)

    async def decode(
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
        """Advances a layer of every session, by `[B, ..]` or `[B, T, ..]`."""
        states = [session._state for session in self._sessions]
        options = step_options(dtype, draft=draft, lengths=lengths, parents=parents, allow_non_finite=allow_non_finite)
        return await self._client.connection.run(array_flow.decode(states, layer, x, options, timeout))

    def decode_stream(
        self,
        layer: int,
        xs: Iterable[Input],
        *,
        window: int = DEFAULT_WINDOW,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[Array]:
        """Decodes as `Session.decode_stream` does, with inputs `[B, D]` or `[B, T, D]`."""
        states = [session._state for session in self._sessions]
        pipeline = decode_pipeline(states, layer, step_options(dtype, allow_non_finite=allow_non_finite), window)
        return aio_streams.outputs(self._client.connection, pipeline, xs, timeout)

    async def accept(self, tokens: Sequence[session_flow.Accepted]) -> None:
        """Accepts tokens of each session's drafts. `tokens[i]` is for session i, as in `Session.accept`."""
        states = [session._state for session in self._sessions]
        await self._client.connection.run(session_flow.accept(states, list(tokens)))
