"""A session as this side knows it: its layers' token counts, and the steps that are kept for a replay.

Thread safety: for one thread at a time.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from google.protobuf import duration_pb2

from gdn_client.flow import Retry, Rpc
from gdn_client.proto.gdn.v1 import session_pb2, tensor_pb2
from gdn_client.shared_memory import SharedMemory
from gdn_client.steps import KeptStep, LayerSteps
from gdn_client.tensors import dtype_code

if TYPE_CHECKING:
    from gdn_client.futures import StepFuture

DEFAULT_KEEP_BYTES = 256 << 20


def new_id() -> str:
    """For a session or a request: 128 random bits."""
    return secrets.token_hex(16)


def duration(seconds: float | None) -> duration_pb2.Duration | None:
    """As the API has it."""
    if seconds is None:
        return None
    whole = int(seconds)
    return duration_pb2.Duration(seconds=whole, nanos=round((seconds - whole) * 1e9))


@dataclass
class SessionStats:
    """What it has taken to keep a session whole."""

    replays: int = 0  # times that lost steps were sent again
    replayed_steps: int = 0
    recreations: int = 0  # times that the session was made anew


@dataclass
class SessionState:
    """A session as this side knows it."""

    session: session_pb2.Session
    retry: Retry
    create: session_pb2.CreateSessionRequest | None = None  # what has made it, where this side has
    keep_bytes: int = 0  # of inputs, for a replay; 0: none are kept
    epoch: int = 0
    layers: dict[int, LayerSteps] = field(default_factory=dict)
    kept_bytes: int = 0
    stats: SessionStats = field(default_factory=SessionStats)
    memory: SharedMemory = field(default_factory=SharedMemory)
    last: StepFuture[Any] | None = None  # the newest that was asked for

    def __post_init__(self) -> None:
        self.take(self.session)

    @property
    def name(self) -> str:
        """ "sessions/ID"."""
        return self.session.name

    def take(self, session: session_pb2.Session) -> None:
        """Goes on from what the server says; forgets what was kept."""
        self.session, self.epoch, self.kept_bytes = session, session.epoch, 0
        self.layers = {layer.layer: LayerSteps(count=layer.token_count) for layer in session.layers}

    def layer(self, layer: int) -> LayerSteps:
        """Of the index; the server refuses one that is none."""
        return self.layers.setdefault(layer, LayerSteps())

    def rpc(self, method: str, request: Any, timeout: float | None = None) -> Rpc:
        """A call that is routed as all of this session are."""
        return Rpc(method, request, timeout, self.session.affinity)

    def note(self, layer: int, step: KeptStep, draft: bool, durable: int) -> None:
        """The server has answered the step."""
        steps = self.layer(layer)
        if draft:
            steps.draft = step
        else:
            steps.add(step)
            self.kept_bytes += step.bytes if step.tokens > 0 else 0
        self.kept_bytes -= steps.trim(durable)
        # The oldest go; a loss of them is then told.
        while self.kept_bytes > self.keep_bytes:
            fullest = max(self.layers.values(), key=lambda one: len(one.kept))
            self.kept_bytes -= fullest.kept.popleft().bytes


Parents = Sequence[int] | Sequence[Sequence[int]]  # of a tree's tokens; of one tree for all rows, or of one a row


@dataclass(frozen=True)
class StepOptions:
    """Of one step; as the API has them."""

    output_dtype: tensor_pb2.DType = tensor_pb2.DTYPE_UNSPECIFIED
    allow_non_finite: bool = False
    draft: bool = False
    lengths: Sequence[int] | None = None
    parents: Sequence[int] = ()


def step_options(
    dtype: str | None,
    *,
    draft: bool = False,
    lengths: Sequence[int] | None = None,
    parents: Parents | None = None,
    allow_non_finite: bool = False,
) -> StepOptions:
    """With a dtype by its name; None: as the input. Parents are those of a draft."""
    code = tensor_pb2.DTYPE_UNSPECIFIED if dtype is None else dtype_code(dtype)
    flat: list[int] = []
    for parent in parents or ():
        flat.extend(parent if isinstance(parent, Sequence) else [parent])
    return StepOptions(code, allow_non_finite, draft or parents is not None, lengths, flat)
