"""The rows of a batch, and the sessions on one server that hold their states.

Rows with the same inputs so far share a session. So several samples of a prompt, and the beams of a search, are
computed once until they differ. When rows of a session differ, it is forked. A session without rows is deleted.

While tokens are *recorded* (assisted generation), `crop` can take back the newest. If the tokens fit one draft, they
are a draft, which is then accepted or dropped. Otherwise a fork from before the tokens takes over, and the client sends
it the inputs that stay.

Thread safety: for one thread at a time.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from gdn_client.session_state import new_id
from gdn_client.step_call import StepRow
from gdn_client.torch.host import AnySession, LayerHost


@dataclass
class _Window:
    """Tokens that `crop` may take back."""

    inputs: dict[int, list[torch.Tensor]] = field(default_factory=dict)  # by layer; inputs of each session, `[t, D]`
    drafted: dict[int, list[int]] = field(default_factory=dict)  # by layer; draft tokens of each session
    before: list[AnySession] | None = None  # the sessions before the window
    has_before: bool = False  # False: all tokens are drafts; True and before is None: they were at zero
    is_settled: bool = False  # its drafts were accepted, and no more follow


class RemoteSequences:
    """Sequences that turn `[B, T, D]` into `[B, T, D]`, layer by layer.

    Between steps, rows may be selected, repeated and cropped.
    """

    def __init__(self, host: LayerHost) -> None:
        self.host = host
        self._affinity = new_id()  # routes them to one device
        self._rows: list[int] = []  # for each row, the index of its session
        self._sessions: list[AnySession] = []
        self._spare: list[AnySession] = []  # the sessions that a window keeps
        self._window: _Window | None = None
        weakref.finalize(self, host.reaper.end, self._sessions, self._spare)

    def __len__(self) -> int:
        """Returns B. 0 before the first step."""
        return len(self._rows)

    @property
    def session_names(self) -> list[str]:
        """The session's name for each row."""
        return [self._sessions[index].name for index in self._rows]

    def token_count(self, layer: int) -> int:
        """Returns the most tokens that any row has seen, including a draft's tokens."""
        waiting = self._window.drafted.get(layer, []) if self._window is not None else []
        counts = [session.token_count(layer) for session in self._sessions]
        return max((c + (waiting[i] if waiting else 0) for i, c in enumerate(counts)), default=0)

    def __deepcopy__(self, memo: dict[int, Any]) -> RemoteSequences:
        self._refuse_open_window("copied")
        twin = RemoteSequences(self.host)
        twin._sessions[:] = self.host.fork_each(self._sessions)
        twin._rows[:] = self._rows
        memo[id(self)] = twin
        return twin

    # --- Steps.

    def step(self, layer: int, rows: Sequence[torch.Tensor], *, record: bool) -> list[torch.Tensor]:
        """Advances a layer.

        Args:
            layer: index of the layer.
            rows: tokens of each row, `[t, D]` in host memory. t may differ between rows, and may be 0.
            record: whether `crop` may follow.

        Returns:
            The output of each row, `[t, D]`.

        Raises:
            GdnError: the server has failed, and some rows may have advanced.

        """
        if not self._rows:
            self._sessions[:] = self.host.new_sessions(1, self._affinity)
            self._rows[:] = [0] * len(rows)
        self._part(rows)
        first_rows = {index: row for row, index in reversed(list(enumerate(self._rows)))}
        inputs = [rows[first_rows[index]] for index in range(len(self._sessions))]
        outputs = self._record(layer, inputs) if record else self._advance(layer, inputs)
        return [outputs[index] for index in self._rows]

    def _part(self, rows: Sequence[torch.Tensor]) -> None:
        """Gives rows that share a session, but now have different inputs, sessions of their own."""
        members: dict[int, list[int]] = {}
        for row, index in enumerate(self._rows):
            members.setdefault(index, []).append(row)
        leaving: dict[int, list[list[int]]] = {}  # by session, groups of equal rows that need one of their own
        for index, shared in members.items():
            groups: dict[bytes, list[int]] = {}
            for row in shared if len(shared) > 1 else ():
                groups.setdefault(_digest(rows[row]), []).append(row)
            if len(groups) > 1:
                leaving[index] = list(groups.values())[1:]
        if not leaving:
            return
        self._refuse_open_window("parted")
        for group, session in zip(
            (group for groups in leaving.values() for group in groups), self._copies(leaving), strict=True
        ):
            for row in group:
                self._rows[row] = len(self._sessions)
            self._sessions.append(session)

    def _copies(self, leaving: dict[int, list[list[int]]]) -> list[AnySession]:
        """Returns a session for each group of rows, with the tokens of the session that it leaves."""
        sessions = [self._sessions[index] for index in leaving]
        counts = [len(groups) for groups in leaving.values()]
        if all(session.token_count(layer) == 0 for session in sessions for layer in session.layers):
            return self.host.new_sessions(sum(counts), self._affinity)
        return self.host.fork_each(sessions, counts)

    def _advance(self, layer: int, inputs: Sequence[torch.Tensor], *, draft: bool = False) -> list[torch.Tensor]:
        """Steps every session, in one call if the tokens fit one message. A longer prompt takes calls of its own."""
        if draft or max(len(x) for x in inputs) <= self.host.max_draft:
            return self._decode(layer, inputs, draft)
        outputs, room = list(inputs), self.host.call_tokens

        def advance(group: list[int]) -> None:
            if len(group) == 1:
                results = [self._sessions[group[0]].prefill(layer, inputs[group[0]])]
            else:
                batch = self.host.batch([self._sessions[index] for index in group])
                steps = batch.step(layer, [StepRow(inputs[index], "prefill") for index in group])
                results = [cast(Any, step.output) for step in steps]
            for index, output in zip(group, results, strict=True):
                outputs[index] = cast(torch.Tensor, output)

        self.host.map(advance, _grouped([len(x) for x in inputs], room, self.host.max_batch))
        return outputs

    def _decode(self, layer: int, inputs: Sequence[torch.Tensor], draft: bool) -> list[torch.Tensor]:
        outputs: list[torch.Tensor] = []
        for begin in range(0, len(inputs), self.host.max_batch):
            part = list(inputs[begin : begin + self.host.max_batch])
            lengths = [len(x) for x in part]
            if max(lengths) == 0:
                outputs += part
                continue
            batch = self.host.batch(self._sessions[begin : begin + len(part)])
            padded = torch.nn.utils.rnn.pad_sequence(part, batch_first=True)
            y = cast(torch.Tensor, batch.decode(layer, padded, lengths=lengths, draft=draft))
            outputs += [y[row, :length] for row, length in enumerate(lengths)]
        return outputs

    # --- Rows.

    def select(self, rows: Sequence[int]) -> None:
        """Makes row i continue from row `rows[i]`. A row may be used several times, or never."""
        if not self._rows:
            return
        self._refuse_open_window("reordered")
        chosen = [self._rows[row] for row in rows]
        kept = sorted(set(chosen))
        self.host.reaper.end(session for index, session in enumerate(self._sessions) if index not in kept)
        self._sessions[:] = [self._sessions[index] for index in kept]
        self._rows[:] = [kept.index(index) for index in chosen]

    def reset(self) -> None:
        """Drops all tokens and rows. The next step sets the number of rows."""
        self._close_window()
        self.host.reaper.end(self._sessions)
        self._sessions.clear()
        self._rows.clear()

    # --- Recording.

    def crop(self, tokens: int) -> None:
        """Takes back the newest `tokens` tokens that were recorded since the last call. Then stops recording.

        Raises:
            RuntimeError: fewer tokens were recorded.

        """
        window = self._window
        recorded = min((len(x) for x in next(iter(window.inputs.values()))), default=0) if window else 0
        if tokens > recorded:
            raise RuntimeError(
                f"{tokens} tokens are to be cropped, and {recorded} were recorded since the last crop; call "
                "activate_past_recording on the cache before the tokens that may have to go"
            )
        if window is None:
            return
        waiting = next(iter(window.drafted.values()), None)
        if waiting is not None and all(tokens <= count for count in waiting):
            self._accept([count - tokens for count in waiting])
        elif tokens > 0:
            self._go_back(window, tokens)
        self._close_window()

    def _refuse_open_window(self, verb: str) -> None:
        if self._window is not None:
            raise RuntimeError(f"a cache cannot be {verb} while it records tokens that may be cropped; call crop first")

    def _close_window(self) -> None:
        self._window = None
        self.host.reaper.end(self._spare)
        self._spare.clear()

    def _record(self, layer: int, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        window = self._window = self._window or _Window()
        if layer in window.drafted:
            self._settle(window)
        is_first = layer not in window.inputs
        tails = [min(len(x), self.host.max_draft) for x in inputs]
        if is_first and not window.is_settled:
            if any(len(x) > tail for x, tail in zip(inputs, tails, strict=True)):
                self._keep_before(window)
            heads = [x[: len(x) - tail] for x, tail in zip(inputs, tails, strict=True)]
            before = self._advance(layer, heads) if any(len(x) > 0 for x in heads) else heads
            drafts = [x[len(x) - tail :] for x, tail in zip(inputs, tails, strict=True)]
            after = self._advance(layer, drafts, draft=True)
            outputs = [torch.cat(pair) for pair in zip(before, after, strict=True)]
            window.drafted[layer] = tails
        else:
            self._keep_before(window)
            outputs = self._advance(layer, inputs)
        earlier = window.inputs.get(layer)
        window.inputs[layer] = (
            [torch.cat(pair) for pair in zip(earlier, inputs, strict=True)] if earlier else list(inputs)
        )
        return outputs

    def _settle(self, window: _Window) -> None:
        """Handles a step that follows drafts: accepts the drafts, and keeps a way back to before them."""
        if not window.has_before:
            self._fork_spare()
            self._accept([0] * len(self._spare), self._spare)
            window.before, window.has_before = self._spare, True
        self._accept(next(iter(window.drafted.values())))
        window.drafted.clear()
        window.is_settled = True

    def _keep_before(self, window: _Window) -> None:
        if window.has_before:
            return
        if any(session.token_count(layer) > 0 for session in self._sessions for layer in session.layers):
            self._fork_spare()
            window.before = self._spare
        window.has_before = True

    def _fork_spare(self) -> None:
        forks = self.host.fork_each(self._sessions)
        self.host.reaper.end(self._spare)  # left by a try that failed after its forks
        self._spare[:] = forks

    def _accept(self, tokens: Sequence[int], sessions: Sequence[AnySession] | None = None) -> None:
        whose = self._sessions if sessions is None else sessions
        for begin in range(0, len(whose), self.host.max_batch):
            end = begin + self.host.max_batch
            self.host.batch(whose[begin:end]).accept(tokens[begin:end])

    def _go_back(self, window: _Window, tokens: int) -> None:
        """Goes back to before the window, and applies its inputs again except for the newest tokens."""
        gone = list(self._sessions)
        if window.before is not None:
            self._sessions[:] = window.before
            self._spare.clear()
        else:
            self._sessions[:] = self.host.new_sessions(len(gone), self._affinity)
        self.host.reaper.end(gone)

        def send_again(index: int) -> None:
            for layer, inputs in window.inputs.items():
                if (stay := len(inputs[index]) - tokens) > 0:
                    self._sessions[index].prefill(layer, inputs[index][:stay])

        self.host.map(send_again, range(len(self._sessions)))


def _grouped(tokens: Sequence[int], room: int, most: int) -> list[list[int]]:
    """Puts rows that have tokens into groups of at most `most` rows and `room` tokens. A row may be larger alone."""
    groups: list[list[int]] = []
    left = 0
    for index, count in enumerate(tokens):
        if count == 0:
            continue
        if not groups or count > left or len(groups[-1]) == most:
            groups.append([])
            left = room
        groups[-1].append(index)
        left -= count
    return groups


def _digest(row: torch.Tensor) -> bytes:
    """Returns a digest that is equal for equal tokens."""
    digest = hashlib.blake2b(digest_size=16)
    if row.numel() > 0:
        digest.update(row.contiguous().view(torch.uint8).numpy().data)
    return digest.digest() + str(tuple(row.shape)).encode()
