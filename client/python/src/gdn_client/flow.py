"""Calls and waits as values, so that a session's logic is written once for threads and for asyncio.

A *flow* is a generator that yields requests (an Rpc, a Download, a Watch, a Sleep or an OpenRegion). The code that runs
a flow sends each reply back into it, or throws the GdnError into it. The flow's return value is its result.
`Connection.run` and its asyncio twin run flows.
Thread safety: a flow is for one thread at a time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from google.protobuf.message import Message

from gdn_client.errors import DeadlineExceededError, GdnError, NoServerError, SessionLostError, UnimplementedError
from gdn_client.steps import SentStep

T = TypeVar("T")
LEAST_SECONDS = 1e-6  # of a timeout whose time is over: 0 would be no limit in some places


@dataclass(frozen=True)
class Rpc:
    """A unary call of GdnService. The request is a message, or a step's bytes."""

    method: str
    request: Message | SentStep
    timeout: float | None = None  # seconds; None: the client's
    affinity: str = ""
    spent: float = 0.0  # seconds of the timeout that something else took before the call

    @property
    def route(self) -> str:
        """The key that routes the call."""
        return self.affinity or route_of(self.request)


def route_of(request: Message | SentStep) -> str:
    """Returns the id of the first session that a request names. Servers use it for sessions without an affinity."""
    for where in ("acceptances", "rows", "sessions", "names", "session", "name"):
        named = getattr(request, where, "")
        if not isinstance(named, str):
            named = named[0] if len(named) else ""
        if name := str(getattr(named, "session", named)):
            prefix, _, session = name.partition("/")
            return session if prefix == "sessions" and session.isascii() and session.isprintable() else ""
    return ""


@dataclass(frozen=True)
class Sleep:
    """A wait."""

    seconds: float


@dataclass(frozen=True)
class OpenRegion:
    """A request for memory that the server shares. The answer is a `shared_memory.Region`.

    It may take half of the timeout of the call that needs the memory, so that a message still has time.
    """

    bytes: int
    timeout: float | None = None  # seconds, of that call; None: the client's


@dataclass(frozen=True)
class Download:
    """A call whose replies form a stream. Each reply is passed to `take`, and the flow gets no answer."""

    rpc: Rpc
    take: Callable[[Any], None]


@dataclass(frozen=True)
class Watch:
    """A watch of a session's states. The answer is the first snapshot and an iterator of the others."""

    request: Message
    affinity: str = ""


Wanted: TypeAlias = Rpc | Download | Watch | Sleep | OpenRegion
Flow: TypeAlias = Generator[Wanted, Any, T]


@dataclass(frozen=True)
class Retry:
    """How long and how often a call is retried after an error that may be temporary.

    The client retries only calls that are safe to repeat. Each carries a request id, and the server answers a repeated
    call with the stored reply.

    Attributes:
        overall: seconds after which no further try begins. 0 means one try. A call ends within this time plus the
            `timeout` of one try.
        first: seconds before the second try. Each later wait is twice as long, up to `longest`.
        longest: most seconds between two tries.
        connect: as `overall`, until a server has answered the client for the first time. With 0, a target without a
            server is an error at once (NoServerError). Set some seconds if you start the server beside the client.

    """

    overall: float = 60.0
    first: float = 0.05
    longest: float = 2.0
    connect: float = 0.0


@dataclass
class Backoff:
    """The waits between the tries of one call."""

    retry: Retry
    begun: float = field(default_factory=time.monotonic)
    next_wait: float = 0.0

    def wait(self, error: GdnError) -> Sleep:
        """Returns the wait before the next try.

        Raises:
            GdnError: `error` itself, if no time is left for another try. If the session must be restored first, this is
                a DeadlineExceededError instead, because `error` would wrongly say that the call cannot succeed.

        """
        base = self.next_wait or self.retry.first
        self.next_wait = min(2 * base, self.retry.longest)
        seconds = max(base * random.uniform(0.5, 1.0), error.retry_after or 0.0)
        most = self.retry.connect if isinstance(error, NoServerError) else self.retry.overall
        if time.monotonic() - self.begun + seconds > most:
            if worth_another_try(error):
                raise error
            raise DeadlineExceededError(
                "the session has to be brought back, which the same call again goes on with: "
                f"{error.message} (the last try: the time for this call is over)",
                reason="DEADLINE_EXCEEDED",
                metadata=error.metadata,
            ) from error
        return Sleep(seconds)


def worth_another_try(error: GdnError) -> bool:
    """Whether the same call may succeed a little later."""
    if isinstance(error, SessionLostError):
        return False
    match error.code.name:
        case "UNAVAILABLE" | "DEADLINE_EXCEEDED" | "CANCELLED":
            return True
        case "ABORTED":
            return error.reason == "SESSION_BUSY"
        case "RESOURCE_EXHAUSTED":
            return error.retry_after is not None
        case "UNKNOWN" | "INTERNAL":
            return not error.reason  # gRPC's own words for a connection that broke in the middle
        case _:
            return False


def is_unknown_method(error: object) -> bool:
    """Whether gRPC has answered in the place of a method that the server does not have."""
    return isinstance(error, UnimplementedError) and not error.reason


def exact(rpc: Rpc, retry: Retry) -> Flow[Any]:
    """Returns the reply to a call that is safe to repeat, because it is idempotent or has a request id."""
    backoff = Backoff(retry)
    while True:
        try:
            return (yield rpc)
        except GdnError as error:
            if not worth_another_try(error):
                raise
            yield backoff.wait(error)
