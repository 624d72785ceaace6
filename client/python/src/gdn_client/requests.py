"""Requests that the clients for threads and for asyncio share, and the reading of replies.

Thread safety: free functions; a Snapshots object is for one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from gdn_client.errors import DataLossError
from gdn_client.progress import Told
from gdn_client.proto.gdn.v1 import info_pb2, session_pb2, state_pb2
from gdn_client.session_state import duration, new_id

IMPORT_CHUNK_BYTES = 1 << 20
_TIERS = ("device", "host", "disk", "redis")


def only_model(models: Sequence[info_pb2.Model]) -> str:
    """Returns the name of the only served model.

    Raises:
        ValueError: the server serves no model, or several.

    """
    if len(models) != 1:
        names = ", ".join(model.name.removeprefix("models/") for model in models) or "none"
        raise ValueError(f"the server serves {names}; say which model")
    return models[0].name


def model_name(name: str) -> str:
    """Returns the model's name in the API, "models/NAME"."""
    return name if name.startswith("models/") else f"models/{name}"


def session_name(name: str) -> str:
    """Returns the session's name in the API, "sessions/ID"."""
    return name if name.startswith("sessions/") else f"sessions/{name}"


def lease_name(lease: object) -> str:
    """Returns the name in the API, "leases/ID", of a lease that is given by itself, its id or its name; "" for None."""
    name = lease if isinstance(lease, str) else str(getattr(lease, "name", ""))
    return name if not name or name.startswith("leases/") else f"leases/{name}"


def session_request(
    operator: session_pb2.OperatorSpec | None,
    session_id: str | None,
    affinity: str,
    idle_ttl: float | None,
    max_lifetime: float | None,
    prefix: session_pb2.PromptPrefix | None = None,
    lease: str = "",
) -> session_pb2.CreateSessionRequest:
    """Returns the request for a session. Without an operator, the caller must add the model."""
    request = session_pb2.CreateSessionRequest(
        session_id=session_id or new_id(),
        operator=operator,
        affinity=affinity,
        idle_ttl=duration(idle_ttl),
        max_lifetime=duration(max_lifetime),
        lease=lease,
    )
    if prefix is not None and prefix.segments:
        request.prefix.CopyFrom(prefix)
    return request


def import_requests(
    file: bytes,
    model: str,
    session_id: str | None,
    affinity: str,
    told: Told = lambda done: None,
    lease: str = "",
) -> Iterator[session_pb2.ImportStateRequest]:
    """Yields the messages that carry a state file."""
    target = session_pb2.ImportStateRequest.Target(
        session_id=session_id or new_id(), model=model, affinity=affinity, total_bytes=len(file), lease=lease
    )
    yield session_pb2.ImportStateRequest(target=target)
    for begin in range(0, len(file), IMPORT_CHUNK_BYTES):
        data = file[begin : begin + IMPORT_CHUNK_BYTES]
        yield session_pb2.ImportStateRequest(data=data)
        told(len(data))


def tier_code(name: str) -> session_pb2.StateTier:
    """Returns the API's value for "device", "host", "disk" or "redis".

    Raises:
        ValueError: it is another name.

    """
    if name not in _TIERS:
        raise ValueError(f"tier is {name!r}, expected one of {', '.join(_TIERS)}")
    return cast(session_pb2.StateTier, _TIERS.index(name) + 1)


def tier_name(tier: session_pb2.StateTier) -> str:
    """Returns "device", "host", "disk" or "redis", or "" for an unknown tier."""
    return _TIERS[tier - 1] if 0 < tier <= len(_TIERS) else ""


@dataclass(frozen=True)
class StateSnapshot:
    """A session's states at one moment, as a state file.

    Attributes:
        sequence: number of snapshots of the watch before this one.
        delta: if true, the file lacks the base states. They are those of the watch's last file that is not a delta.
        file: safetensors bytes. docs/reference/state-files.md of the server's repository describes them.

    """

    sequence: int
    delta: bool
    file: bytes


class Snapshots:
    """Assembles snapshots from a watch's pieces."""

    def __init__(self) -> None:
        self._pieces = bytearray()
        self._next = 0

    def add(self, piece: state_pb2.WatchStateResponse) -> StateSnapshot | None:
        """Adds a piece. Returns the snapshot when it is complete, else None.

        Raises:
            DataLossError: the piece does not follow the pieces before.

        """
        if piece.sequence != self._next or piece.offset != len(self._pieces):
            raise DataLossError(
                f"a piece is of snapshot {piece.sequence} at byte {piece.offset}, expected {self._next} at "
                f"{len(self._pieces)}; watch again",
                reason="INVALID_STATE_FILE",
            )
        self._pieces += piece.data
        if len(self._pieces) < piece.total_bytes:
            return None
        whole = StateSnapshot(piece.sequence, piece.delta, bytes(self._pieces))
        self._pieces.clear()
        self._next += 1
        return whole


def watch_request(
    name: str, every_tokens: int, every: float | None, epoch: int | None = None
) -> state_pb2.WatchStateRequest:
    """Makes a request with the session's name, how often its states are sent, and the epoch that they must have."""
    return state_pb2.WatchStateRequest(
        name=session_name(name), every_tokens=every_tokens, every=duration(every), session_epoch=epoch
    )
