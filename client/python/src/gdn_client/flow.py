"""Calls and waits as values, so that what a session does is written once for threads and for asyncio.

A *flow* is a generator that yields what it wants done (an Rpc, a Download, a Watch, a Sleep, an OpenRegion), is sent
the reply or thrown the GdnError, and returns its result. `Connection.run` and its asyncio twin carry flows out.
Thread safety: a flow is for one thread at a time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from google.protobuf.message import Message

from gdn_client.errors import DeadlineExceededError, GdnError, NoServerError, SessionLostError

T = TypeVar("T")


@dataclass(frozen=True)
class Rpc:
    """A unary call of GdnService."""

    method: str
    request: Message
    timeout: float | None = None  # seconds; None: the client's
    affinity: str = ""

    @property
    def route(self) -> str:
        """The key that routes the call."""
        return self.affinity or route_of(self.request)


def route_of(request: Message) -> str:
    """The id of the first session that a request names, as servers take it for a session without an affinity."""
    for where in ("acceptances", "sessions", "names", "session", "name"):
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
    """Memory that the server shares; the answer is a `shared_memory.Region`."""

    bytes: int


@dataclass(frozen=True)
class Download:
    """A call whose replies come in a stream; each is given to `take`, and there is no answer."""

    method: str
    request: Message
    take: Callable[[Any], None]
    affinity: str = ""

    @property
    def route(self) -> str:
        """The key that routes the call."""
        return self.affinity or route_of(self.request)


@dataclass(frozen=True)
class Watch:
    """A watch of a session's states; the answer is its first snapshot and an iterator of the others."""

    request: Message
    affinity: str = ""


Wanted: TypeAlias = Rpc | Download | Watch | Sleep | OpenRegion
Flow: TypeAlias = Generator[Wanted, Any, T]


@dataclass(frozen=True)
class Retry:
    """How long and how often a call is tried again that has failed for a reason that may pass.

    Only calls that are exact are: each carries a request id, and the server answers a repeated one from its memory.

    Attributes:
        overall: seconds after which no further try begins; 0: one try. A call ends within this time and the `timeout`
            of one try.
        first: seconds before the second try; each wait is twice the one before, at most `longest`.
        longest: seconds.
        connect: as `overall`, while no server has answered the client yet. 0: a target at which nothing listens is an
            error at once (NoServerError). Give some seconds if the server is started beside the client.

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
        """What to do before the next try.

        Raises:
            GdnError: `error`, if no time is left for one; DeadlineExceededError if the session has to be brought back
                first, for `error` would say that the call is of no use.

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
    """Whether the same call may find another answer a little later."""
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


def exact(rpc: Rpc, retry: Retry) -> Flow[Any]:
    """The reply to a call that may be repeated: it is idempotent, or has a request id."""
    backoff = Backoff(retry)
    while True:
        try:
            return (yield rpc)
        except GdnError as error:
            if not worth_another_try(error):
                raise
            yield backoff.wait(error)
