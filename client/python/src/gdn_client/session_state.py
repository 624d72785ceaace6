"""The client's view of a session: its layers' token counts, the steps that are kept for a replay, the call in flight.

Thread safety: for one thread at a time.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gdn_client.errors import GdnError, NotFoundError
from gdn_client.flow import Retry, Rpc
from gdn_client.proto import Duration
from gdn_client.proto.gdn.v1 import session_pb2, step_pb2, tensor_pb2
from gdn_client.shared_memory import SharedMemory
from gdn_client.steps import KeptStep, LayerSteps
from gdn_client.tensors import dtype_code

if TYPE_CHECKING:
    from gdn_client.futures import StepFuture

DEFAULT_KEEP_BYTES = 256 << 20


def new_id() -> str:
    """Returns 128 random bits, as an id for a session or a request."""
    return secrets.token_hex(16)


def duration(seconds: float | None) -> Duration | None:
    """Converts seconds to the API's Duration."""
    if seconds is None:
        return None
    whole = int(seconds)
    return Duration(seconds=whole, nanos=round((seconds - whole) * 1e9))


@dataclass
class SessionStats:
    """Counts of a session's recoveries."""

    replays: int = 0  # times that lost steps were sent again
    replayed_steps: int = 0
    recreations: int = 0  # times that the session was recreated
    rewinds: int = 0  # times that it went back to before a step whose output was lost


@dataclass
class RequestId:
    """The id of one call, which may name several sessions."""

    value: str = field(default_factory=new_id)


@dataclass
class InFlight:
    """A step or acceptance of one session that the server has not answered yet.

    A step may accept tokens of its layer's draft first; both are applied together, or not at all.

    Attributes:
        request_id: id of the call. Rows of a call that share the object always have the same id.
        layer: layer of the step. None: an acceptance, for every layer that has a draft.
        tokens: number of tokens that the step takes, or the acceptance accepts.
        draft: whether the tokens are a draft.
        digest: identifies the call's arguments. A caller that asks for the same again gets the answer of this call.
        accepted: number of the draft's tokens that the step accepts first. None: it accepts nothing.
        sent: it may have been applied.
        accepted_before: an earlier try of this draft was applied and the draft is dropped again, but the tokens that it
            accepted first stay accepted. The next try accepts nothing.
        is_accepted: for an acceptance, the server has applied it in every layer. The next try accepts nothing.
        answer: the server's answer, while other rows of the call have none.
        copy_tried: the durable copy contains the step, and the session has already gone back to that copy.
        refusal: the server's reason because of which the session must be checked.

    """

    request_id: RequestId
    layer: int | None
    tokens: int
    draft: bool
    digest: Callable[[], bytes]
    accepted: int | None = None
    sent: bool = False
    accepted_before: bool = False
    is_accepted: bool = False
    answer: Any = None
    copy_tried: bool = False
    refusal: str = ""

    @property
    def moves(self) -> int:
        """Number of tokens that the layer's count grows by. A draft's tokens do not count."""
        return (0 if self.draft else self.tokens) + (self.accepted or 0)

    def drops(self, layer: int) -> bool:
        """Whether it drops the layer's whole draft, so that the draft need not be there."""
        return self.tokens == 0 if self.layer is None else self.layer == layer and self.accepted == 0


@dataclass
class PartDone:
    """A row that was applied by another method than Step, in a call of which other rows were not.

    Attributes:
        digest: identifies the row.
        count: tokens that its layer has seen since.
        draft_tokens: tokens of the layer's draft since.
        outputs: outputs of its first tokens.

    """

    digest: bytes
    count: int
    draft_tokens: int
    outputs: list[Any]


@dataclass(eq=False)
class SessionState:
    """The client's view of a session.

    Attributes:
        session: the session, as the server has described it.
        retry: how its calls are retried.
        create: request that created the session, or creates one like it. None: it cannot be recreated.
        keep_bytes: most bytes of inputs to keep for a replay. 0: none are kept, and a loss is raised to the caller.
        keeps_durable: while there is room, also keep inputs that a durable copy contains, so that forks can be
            recreated.
        start: tokens that every layer has seen in a session that `create` makes.
        astray: the server's session may not be where the client believes it to be.
        rolled_back: the session is astray, and its current state is lost.
        needs_replay: the server has lost something, and the replay is not complete.
        in_flight: the call that is being tried.
        given_up: the last call, if it ended without an answer.
        part_done: a row that the same call again need not apply.
        ended: the client has deleted the session, or has started to. No call may recreate it.
        restoring: a restore or reset got no answer, so the state may be the one after it. All other calls are refused.
        cannot_checkpoint: the server has no durable tier.
        checkpoints: named checkpoints, with their token counts.
        of_this_history: names of the checkpoints that the session has passed, and has not gone back behind.

    """

    session: session_pb2.Session
    retry: Retry
    create: session_pb2.CreateSessionRequest | None = None
    keep_bytes: int = 0
    keeps_durable: bool = False
    epoch: int = 0
    layers: dict[int, LayerSteps] = field(default_factory=dict)
    start: int = 0
    kept_bytes: int = 0
    stats: SessionStats = field(default_factory=SessionStats)
    memory: SharedMemory = field(default_factory=SharedMemory)
    last: StepFuture[Any] | None = None  # the newest future that was asked for
    astray: bool = False
    rolled_back: bool = False
    needs_replay: bool = False
    in_flight: InFlight | None = None
    given_up: InFlight | None = None
    part_done: PartDone | None = None
    ended: bool = False
    restoring: bool = False
    cannot_checkpoint: bool = False
    checkpoints: dict[str, dict[int, int]] = field(default_factory=dict)
    of_this_history: set[str] = field(default_factory=set)
    _row_head: tuple[int, bytes] = (-1, b"")  # of an epoch

    def __post_init__(self) -> None:
        self.epoch = self.session.epoch
        for layer in self.session.layers:
            count = layer.token_count
            self.layers[layer.layer] = LayerSteps(
                count, count, count, layer.durable_token_count, draft_tokens=layer.draft_length
            )

    @property
    def name(self) -> str:
        """The session's name, "sessions/ID"."""
        return self.session.name

    @property
    def row_head(self) -> bytes:
        """The session's name and epoch, as fields of a `StepRow`."""
        if self._row_head[0] != self.epoch:
            row = step_pb2.StepRow(session=self.name, session_epoch=self.epoch)
            self._row_head = self.epoch, row.SerializeToString()
        return self._row_head[1]

    def check_not_ended(self) -> None:
        """Raises NotFoundError (SESSION_NOT_FOUND) if the client has ended the session."""
        if self.ended:
            raise NotFoundError(
                f"{self.name} has ended: its `with` block is over, or it was deleted by this client. Make a new "
                "session; to keep one on the server, call detach() before the block ends",
                reason="SESSION_NOT_FOUND",
                metadata={"session": self.name},
            )

    def layer(self, layer: int) -> LayerSteps:
        """Returns the steps of the layer with this index. For an index that the server refuses, nothing is kept."""
        return self.layers.get(layer) or LayerSteps()

    def rpc(self, method: str, request: Any, timeout: float | None = None) -> Rpc:
        """Returns a call that is routed like all calls of this session."""
        return Rpc(method, request, timeout, self.session.affinity)

    @property
    def kept_from_start(self) -> bool:
        """Whether the session can be recreated, with all tokens that it has seen."""
        return self.create is not None and all(known.begin == self.start for known in self.layers.values())

    @property
    def first_kept(self) -> tuple[int, int]:
        """The layer with the fewest kept inputs: its index, and the first token whose input is kept."""
        layer = max(self.layers, key=lambda index: self.layers[index].begin, default=0)
        return layer, self.layer(layer).begin

    def is_as_known(self, layers: Iterable[session_pb2.LayerState], *, drafts: bool = True) -> bool:
        """Whether these token counts and draft lengths are those that the client knows."""
        found = {layer.layer: layer for layer in layers}
        return found.keys() == self.layers.keys() and all(
            layer.token_count == self.layers[index].count
            and (not drafts or layer.draft_length == self.layers[index].draft_tokens)
            for index, layer in found.items()
        )

    def note(self, layer: int, step: KeptStep, durable: int) -> None:
        """Notes a step that the server has answered."""
        known = self.layer(layer)
        known.count = after = step.before + step.tokens
        known.reached = max(known.reached, after)
        if self.keep_bytes <= 0:
            known.begin = after
        elif step.tokens > 0:
            known.kept.append(step)
            self.kept_bytes += step.bytes
        if durable > 0 or self.kept_bytes > self.keep_bytes:
            self.note_durable(layer, durable)

    def note_draft(self, layer: int, step: KeptStep) -> None:
        """Notes a draft that the server has answered."""
        known = self.layer(layer)
        known.draft = step if self.keep_bytes > 0 and step.tokens > 0 else None
        known.draft_tokens = step.tokens

    def note_durable(self, layer: int, count: int) -> None:
        """Notes that a durable copy has `count` tokens. Drops inputs that need not be kept any more."""
        known = self.layer(layer)
        known.durable = max(known.durable, count)
        if not self.keeps_durable and known.kept and known.kept[0].after <= known.durable:
            self.kept_bytes -= known.trim()
        while self.kept_bytes > self.keep_bytes and (
            durable := [one for one in self._with_steps() if one.kept[0].after <= one.durable]
        ):
            self._drop_of(durable)

    @property
    def is_over(self) -> bool:
        """Whether more bytes of inputs are kept than `keep_bytes` allows."""
        return self.kept_bytes > max(self.keep_bytes, 0)

    def drop_oldest(self) -> None:
        """Drops the oldest inputs until the limit is met. If the server loses their tokens, that is an error."""
        while self.is_over:
            self._drop_of(self._with_steps())

    def _with_steps(self) -> list[LayerSteps]:
        return [known for known in self.layers.values() if known.kept]

    def _drop_of(self, layers: Iterable[LayerSteps]) -> None:
        self.kept_bytes -= max(layers, key=lambda known: len(known.kept)).drop_first()

    def note_checkpoint(self, checkpoint_id: str) -> None:
        """Notes a durable copy of the present state. After a crash the server uses the copy without an id."""
        if checkpoint_id:
            self.checkpoints[checkpoint_id] = {index: known.count for index, known in self.layers.items()}
            self.of_this_history.add(checkpoint_id)
            return
        for index, known in self.layers.items():
            self.note_durable(index, known.count)

    def restored(self, session: session_pb2.Session, checkpoint_id: str) -> None:
        """Notes that the session went back to a checkpoint.

        The newest checkpoint, which has no id, always belongs to the present history.
        """
        counts = {layer.layer: layer.token_count for layer in session.layers}
        known_here = checkpoint_id in self.of_this_history and self.checkpoints[checkpoint_id] == counts
        same_history = not checkpoint_id or known_here
        self.of_this_history = {
            name
            for name in self.of_this_history
            if same_history and all(count <= counts.get(index, 0) for index, count in self.checkpoints[name].items())
        }
        if checkpoint_id:
            self.checkpoints[checkpoint_id] = counts
            self.of_this_history.add(checkpoint_id)
        self.session, self.epoch = session, session.epoch
        for layer in session.layers:
            known = self.layer(layer.layer)
            self.kept_bytes -= known.cut_to(layer.token_count, same_history=same_history)
            known.durable, known.draft_tokens = 0, layer.draft_length
            self.note_durable(layer.layer, layer.durable_token_count)
        self.given_up, self.part_done, self.restoring = None, None, False
        self.astray, self.rolled_back, self.needs_replay = False, False, False

    def set_to_zero(self) -> None:
        """Notes that the session's tokens are given up, those of its prefix too."""
        if self.create is not None and self.create.HasField("prefix"):
            request = session_pb2.CreateSessionRequest()
            request.CopyFrom(self.create)
            request.ClearField("prefix")
            self.create = request
        self.start = 0
        self.of_this_history.clear()
        late, self.given_up, self.part_done = self.given_up, None, None
        for index, known in self.layers.items():
            self.kept_bytes -= known.cut_to(0, same_history=False)
            known.durable, known.accepted = 0, None
            if late is not None and late.layer == index:
                known.reached = late.moves  # it may arrive behind the reset, and be taken back then

    def was_reset(self, session: session_pb2.Session) -> None:
        """Notes that the session went back to zero tokens."""
        self.set_to_zero()
        self.session, self.epoch = session, session.epoch
        for layer in session.layers:
            self.note_durable(layer.layer, layer.durable_token_count)
        self.astray, self.rolled_back, self.needs_replay, self.restoring = False, False, False, False


class KnownSessions:
    """The sessions that a client has objects for, so that `Client.delete_session` can mark them as ended.

    Thread safety: any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: weakref.WeakSet[SessionState] = weakref.WeakSet()

    def add(self, state: SessionState) -> None:
        """Adds a session. It is removed when nothing refers to it any more."""
        with self._lock:
            self._states.add(state)

    @contextlib.contextmanager
    def ending(self, name: str) -> Iterator[None]:
        """Wraps a call that deletes the session with this name.

        If the session may have been deleted, no object recreates it.
        """
        try:
            yield
        except GdnError as error:
            if error.reason and not isinstance(error, NotFoundError):
                raise  # the server has refused, so the session still exists
            self._end(name)
            raise
        self._end(name)

    def _end(self, name: str) -> None:
        with self._lock:
            for state in self._states:
                state.ended = state.ended or state.name == name


Parents = Sequence[int] | Sequence[Sequence[int]]  # of a tree's tokens: one tree for all rows, or one a row


@dataclass(frozen=True)
class StepOptions:
    """Options of one step, as the API has them."""

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
    """Makes the options of a step from a dtype's name (None: the dtype of the input). `parents` makes it a draft."""
    code = tensor_pb2.DTYPE_UNSPECIFIED if dtype is None else dtype_code(dtype)
    flat: list[int] = []
    for parent in parents or ():
        flat.extend(parent if isinstance(parent, Sequence) else [parent])
    return StepOptions(code, allow_non_finite, draft or parents is not None, lengths, flat)
