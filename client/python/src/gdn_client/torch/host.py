"""The server of some layers: its client, and what many caches of one model share.

Thread safety: any thread may use a LayerHost.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar, cast

from gdn_client.client import Client, model_name, only_model
from gdn_client.errors import GdnError
from gdn_client.proto.gdn.v1 import info_pb2
from gdn_client.session import Batch, Session
from gdn_client.session_flow import new_id
from gdn_client.sliced import SlicedBatch, SlicedClient, SlicedSession

T = TypeVar("T")
R = TypeVar("R")

AnySession: TypeAlias = Session | SlicedSession

MAX_CALLS_AT_ONCE = 32  # prompts are sent a call each, and the server puts together what comes together
EXIT_SECONDS = 10.0


class Reaper:
    """Ends sessions, in a thread of its own: a cache may be collected anywhere, also where no call can be made."""

    def __init__(self) -> None:
        self._sessions: queue.SimpleQueue[AnySession | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(self._sessions,), name="gdn-reaper", daemon=True)
        self._thread.start()

    def end(self, *lists: Iterable[AnySession]) -> None:
        """Soon, without waiting. A finalizer may call it."""
        for sessions in lists:
            for session in sessions:
                self._sessions.put(session)

    def stop(self) -> None:
        """Waits for what was given."""
        self._sessions.put(None)
        self._thread.join(EXIT_SECONDS)

    @staticmethod
    def _run(sessions: queue.SimpleQueue[AnySession | None]) -> None:
        while (session := sessions.get()) is not None:
            with contextlib.suppress(GdnError, ValueError):  # what is left ends by its idle TTL
                session.delete()


class LayerHost:
    """A served model whose layers run for a local one.

    Args:
        client: of the server, or of the servers that have some of the model's heads each; it is not closed.
        model: the served model's name; None: the only one.
        layers: indices that are used here; None: all of its Gated DeltaNet layers.
        idle_ttl: seconds after which the server ends a session that nobody steps; None: the server's.

    Raises:
        ValueError: the server does not have such a model, or not such layers.

    """

    def __init__(
        self,
        client: Client | SlicedClient,
        model: str | None = None,
        layers: Iterable[int] | None = None,
        *,
        idle_ttl: float | None = None,
    ) -> None:
        self.client = client
        self.model: info_pb2.Model = client.model(only_model(client.models()) if model is None else model_name(model))
        served = list(self.model.gdn_layers)
        self.layers: list[int] = served if layers is None else sorted(layers)
        if missing := sorted(set(self.layers) - set(served)):
            raise ValueError(
                f"{self.model.name} at {client.target} has no Gated DeltaNet layers {missing}, it has {served}"
            )
        self.max_draft: int = client.limits.max_draft
        self.max_batch: int = client.limits.max_batch
        self._idle_ttl = idle_ttl
        self._pool = ThreadPoolExecutor(MAX_CALLS_AT_ONCE, thread_name_prefix="gdn")
        self.reaper = Reaper()
        self._finish = weakref.finalize(self, _finish, self.reaper, self._pool)

    def __repr__(self) -> str:
        return f"<{self.model.name} at {self.client.target}, layers {self.layers}>"

    def close(self) -> None:
        """Waits for the sessions that were given to the reaper, and ends the threads. Once is enough."""
        self._finish()

    def new_sessions(self, count: int, affinity: str) -> list[AnySession]:
        """At zero; on one device, as those of one affinity are."""
        return self.map(lambda _: self._new_session(affinity), range(count))

    def _new_session(self, affinity: str) -> AnySession:
        session = self.client.session(self.model.name, affinity=affinity, idle_ttl=self._idle_ttl)
        # Beams are forked at every token: their inputs are kept as long as there is room, so that no fork needs a copy
        # on the server's disk.
        for part in session.parts if isinstance(session, SlicedSession) else [session]:
            part._state.keeps_durable = True
        return session

    def fork(self, session: AnySession, count: int = 1) -> list[AnySession]:
        """Sessions that go on from there, also after a crash of the server."""
        return list(session.fork(count, idle_ttl=self._idle_ttl, durable=True))

    def batch(self, sessions: Sequence[AnySession]) -> Batch | SlicedBatch:
        """Sessions to decode in one call of a server."""
        return cast(Any, self.client).batch(sessions)  # type: ignore[no-any-return]

    def map(self, call: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """`call` of each, at the same time.

        Raises:
            BaseException: that of the first item whose call raised, after all have ended.

        """
        if len(items) < 2:
            return [call(item) for item in items]
        futures = [self._pool.submit(call, item) for item in items]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]


def new_affinity() -> str:
    """For sequences that are stepped together."""
    return new_id()


def _finish(reaper: Reaper, pool: ThreadPoolExecutor) -> None:
    reaper.stop()
    pool.shutdown(wait=False)
