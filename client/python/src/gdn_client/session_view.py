"""What a client knows of a session without asking the server.

Thread safety: as of a session.
"""

from __future__ import annotations

from gdn_client.notebook import size, table
from gdn_client.requests import tier_name
from gdn_client.session_state import SessionState, SessionStats

SUMMARY = ("session", "model", "layers", "tokens", "inputs kept", "tier")


class SessionView:
    """What this side knows of a session, without a call."""

    _state: SessionState

    def __repr__(self) -> str:
        counts = sorted({layer.count for layer in self._state.layers.values()})
        tokens = (
            "no tokens"
            if not counts
            else f"{counts[0]} tokens"
            if len(counts) == 1
            else f"{counts[0]}..{counts[-1]} tokens"
        )
        spec = self._state.session.model or "operator"
        return f"<Session {self.name} of {spec} {len(self._state.layers)} layers, {tokens}>"

    def summary(self) -> list[object]:
        """Of a table: name, model, layers, tokens, tokens that are kept for a replay, tier."""
        counts = sorted({layer.count for layer in self._state.layers.values()}) or [0]
        tokens = str(counts[0]) if len(counts) == 1 else f"{counts[0]}..{counts[-1]}"
        tier = tier_name(self._state.session.tier) or "not told"
        return [self.id, self.model or "operator", len(self._state.layers), tokens, size(self._state.kept_bytes), tier]

    def _repr_html_(self) -> str:
        return table(f"Session {self.id}, as this side knows it", SUMMARY, [self.summary()])

    @property
    def name(self) -> str:
        """ "sessions/ID", as the API has it."""
        return self._state.name

    @property
    def id(self) -> str:
        """The part of the name after "sessions/"."""
        return self.name.removeprefix("sessions/")

    @property
    def model(self) -> str:
        """The model's name, without "models/"; "" for a bare operator."""
        return self._state.session.model.removeprefix("models/")

    @property
    def layers(self) -> list[int]:
        """The indices that `layer` may have, ascending."""
        return sorted(self._state.layers)

    @property
    def prefix_tokens(self) -> int:
        """Tokens of its prompt that it began behind; 0: it began at zero."""
        return self._state.session.prefix_tokens

    @property
    def epoch(self) -> int:
        """How often the session has lost steps that it had answered, from 1."""
        return self._state.epoch

    @property
    def stats(self) -> SessionStats:
        """What it has taken to keep the session whole."""
        return self._state.stats

    def token_count(self, layer: int) -> int:
        """Tokens that the layer has seen, as far as this side knows."""
        return self._state.layer(layer).count
