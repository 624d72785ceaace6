"""Facts about a session that need no call to the server.

Thread safety: as that of a session.
"""

from __future__ import annotations

from gdn_client.notebook import size, table
from gdn_client.requests import tier_name
from gdn_client.session_state import SessionState, SessionStats

SUMMARY = ("session", "model", "layers", "tokens", "inputs kept", "tier")


class SessionView:
    """The client's own knowledge of a session, without a call."""

    _state: SessionState

    def __repr__(self) -> str:
        tokens = f"{self._tokens()} tokens" if self._state.layers else "no tokens"
        spec = self._state.session.model or "operator"
        return f"<Session {self.name} of {spec} {len(self._state.layers)} layers, {tokens}>"

    def summary(self) -> list[object]:
        """Returns a table row: name, model, layers, tokens, bytes of kept inputs and tier."""
        state, tier = self._state, tier_name(self._state.session.tier) or "not told"
        return [self.id, self.model or "operator", len(state.layers), self._tokens(), size(state.kept_bytes), tier]

    def _tokens(self) -> str:
        """Returns "5", or "3..5" if the layers have seen different numbers of tokens."""
        counts = sorted({layer.count for layer in self._state.layers.values()}) or [0]
        return str(counts[0]) if len(counts) == 1 else f"{counts[0]}..{counts[-1]}"

    def _repr_html_(self) -> str:
        return table(f"Session {self.id}, as this side knows it", SUMMARY, [self.summary()])

    @property
    def name(self) -> str:
        """The session's name in the API, "sessions/ID"."""
        return self._state.name

    @property
    def id(self) -> str:
        """The part of the name after "sessions/"."""
        return self.name.removeprefix("sessions/")

    @property
    def model(self) -> str:
        """The model's name, without "models/". "" for a bare operator."""
        return self._state.session.model.removeprefix("models/")

    @property
    def layers(self) -> list[int]:
        """The values that `layer` may have, ascending."""
        return sorted(self._state.layers)

    @property
    def prefix_tokens(self) -> int:
        """Number of prompt tokens that a known prefix replaced. 0: the session started from zero states."""
        return self._state.session.prefix_tokens

    @property
    def epoch(self) -> int:
        """Starts at 1 and grows when the session loses steps that were answered, because of a crash or a restore."""
        return self._state.epoch

    @property
    def stats(self) -> SessionStats:
        """Counts of the session's recoveries: `replays`, `replayed_steps`, `recreations` and `rewinds`."""
        return self._state.stats

    def token_count(self, layer: int) -> int:
        """Returns the number of tokens that the layer has seen, as far as the client knows."""
        return self._state.layer(layer).count
