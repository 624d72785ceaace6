"""Sessions whose layers are spread over several servers (`gdn_server --layers`).

    with gdn_client.LayeredClient(["first:50061", "second:50061"]) as client, client.session("qwen") as session:
        y = session.prefill(layer, x)           # goes to the server that has the layer
        y = session.of(layer).decode_future(layer, x_next).result()

Each server has its own session, with the states of its layers. A step of a layer goes to one server, so it fails and is
repeated as in a session of one server.
Thread safety: as that of `client.Client` and `session.Session`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from gdn_client.client import Client
from gdn_client.errors import GdnError
from gdn_client.inputs import Input
from gdn_client.requests import model_name, only_model
from gdn_client.session import Batch, Session
from gdn_client.session_flow import Accepted
from gdn_client.session_state import new_id
from gdn_client.step_call import StepResults, StepRow
from gdn_client.tensors import Array

P = TypeVar("P", Session, Batch)


class _Parts(Generic[P]):
    """Sessions or batches, one on each server, by the layers that the server has."""

    def __init__(self, parts: Sequence[P], layers: dict[int, int]) -> None:
        self.parts: list[P] = list(parts)
        self._server_of = layers

    @property
    def layers(self) -> list[int]:
        """The values that `layer` may have, ascending."""
        return sorted(self._server_of)

    def of(self, layer: int) -> P:
        """Returns the part on the server that has the layer. All its methods may be used for this layer.

        Raises:
            ValueError: no server has the layer.

        """
        if layer not in self._server_of:
            raise ValueError(f"layer {layer} is on no server, expected one of {self.layers}")
        return self.parts[self._server_of[layer]]

    def decode(self, layer: int, x: Input, **options: Any) -> Array:
        """Advances a layer on its server, as `Session.decode` or `Batch.decode`."""
        return self.of(layer).decode(layer, x, **options)

    def delete(self) -> None:
        """Deletes the sessions on every server.

        Raises:
            GdnError: the first error. The call tries to delete all of them.

        """
        errors = []
        for part in self.parts:
            try:
                part.delete()
            except GdnError as error:
                errors.append(error)
        if errors:
            raise errors[0]


class LayeredSession(_Parts[Session]):
    """One session, with a part on each server. Made by `LayeredClient.session` and `fork`.

    A `with` block deletes the session on all servers at its end, unless `detach` was called.
    """

    def __enter__(self) -> LayeredSession:
        return self

    def __exit__(self, *_: object) -> None:
        if any(part._owned for part in self.parts):
            self.delete()

    def __repr__(self) -> str:
        return f"<LayeredSession {self.name} on {len(self.parts)} servers>"

    @property
    def name(self) -> str:
        """The session's name, "sessions/ID", which is the same on every server."""
        return self.parts[0].name

    def token_count(self, layer: int) -> int:
        """Returns the number of tokens that the layer has seen, as far as the client knows."""
        return self.of(layer).token_count(layer)

    def prefill(self, layer: int, x: Input, **options: Any) -> Array:
        """Advances a layer by a prompt on its server, as `Session.prefill`."""
        return self.of(layer).prefill(layer, x, **options)

    def accept(self, tokens: Accepted) -> None:
        """Accepts tokens of every layer's draft, on every server that has one, as `Session.accept`.

        Raises:
            GdnError: a server has failed. The same call again goes on with the others.

        """
        for part in self.parts:
            if any(known.draft_tokens > 0 for known in part._state.layers.values()):
                part.accept(tokens)

    def fork(self, count: int = 1, *, idle_ttl: float | None = None, durable: bool = False) -> list[LayeredSession]:
        """Creates sessions that continue from this one, on every server. Works as `Session.fork`."""
        ids = [new_id() for _ in range(count)]
        children = _on_all(self.parts, lambda part: part.fork(ids=ids, idle_ttl=idle_ttl, durable=durable))
        return [LayeredSession(parts, self._server_of) for parts in zip(*children, strict=True)]

    def detach(self) -> str:
        """Returns the name. The end of the `with` block then does not delete the session."""
        for part in self.parts:
            part.detach()
        return self.name


class LayeredBatch(_Parts[Batch]):
    """Layered sessions that are stepped in one call of the server that has the layer."""

    def step(self, layer: int, rows: Sequence[StepRow], **options: Any) -> StepResults:
        """Advances a layer of every session on its server, as `Batch.step`."""
        return self.of(layer).step(layer, rows, **options)

    def reset(self) -> None:
        """Sets every session back to zero tokens on every server, as `Batch.reset`. If it fails, reset again."""
        for part in self.parts:
            part.reset()


def _on_all(items: Sequence[Any], make: Callable[[Any], list[Session]]) -> list[list[Session]]:
    """Returns the sessions that `make` makes for each item. If one call fails, those of the others are deleted."""
    made: list[list[Session]] = []
    try:
        for item in items:
            made.append(make(item))
    except BaseException:
        for session in (session for sessions in made for session in sessions):
            with contextlib.suppress(GdnError):
                session.delete()
        raise
    return made


class LayeredClient:
    """Connections to servers that have some layers each. A `with` block closes those that this object has made.

    Args:
        servers: targets or Clients, in any order.
        connection: arguments of the Clients that are made for targets.

    Raises:
        ValueError: there are no servers. `session` also raises it if the servers have different models, or a layer is
            on two servers.

    """

    def __init__(self, servers: Iterable[str | Client], **connection: Any) -> None:
        given = list(servers)
        if not given:
            raise ValueError("there are no servers")
        self.clients = [Client(one, **connection) if isinstance(one, str) else one for one in given]
        self._made = [client for client, one in zip(self.clients, given, strict=True) if isinstance(one, str)]
        self._layers: dict[str, dict[int, int]] = {}

    def __enter__(self) -> LayeredClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def layers(self, model: str) -> dict[int, int]:
        """Returns, for each served layer of the model, the index of its server in `clients`."""
        name = model_name(model)
        if name not in self._layers:
            models = [client.model(name) for client in self.clients]
            found: dict[int, int] = {}
            for at, one in enumerate(models):
                target = self.clients[at].target
                if one.fingerprint != models[0].fingerprint:
                    raise ValueError(f"{name} at {target} and at {self.clients[0].target} are different models")
                if twice := sorted(found.keys() & set(one.gdn_layers)):
                    other = self.clients[found[twice[0]]].target
                    raise ValueError(f"layers {twice} of {name} are at {other} and at {target}, expected each on one")
                found.update(dict.fromkeys(one.gdn_layers, at))
            self._layers[name] = found
        return self._layers[name]

    def session(self, model: str | None = None, *, session_id: str | None = None, **options: Any) -> LayeredSession:
        """Creates a session on every server, under one id. `options` are those of `Client.session`.

        Raises:
            GdnError: a server has refused, and no session is left on the others.

        """
        name = model_name(model) if model is not None else only_model(self.clients[0].models())
        layers, key = self.layers(name), session_id or new_id()
        parts = _on_all(self.clients, lambda client: [client.session(name, session_id=key, **options)])
        return LayeredSession([part for (part,) in parts], layers)

    def batch(self, sessions: Iterable[LayeredSession]) -> LayeredBatch:
        """Groups sessions of one model, so that one call steps a layer of all of them."""
        grouped = list(sessions)
        if not grouped:
            raise ValueError("a batch has at least one session")
        batches = [client.batch([session.parts[at] for session in grouped]) for at, client in enumerate(self.clients)]
        return LayeredBatch(batches, grouped[0]._server_of)

    def close(self) -> None:
        """Closes the connections that this object has made. Sessions stay on the servers."""
        for client in self._made:
            client.close()
