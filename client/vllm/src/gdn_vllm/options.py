"""Options of the plugin, from vLLM's `--additional-config '{"gdn": {...}}'` and from the environment.

    GDN_SERVER=127.0.0.1:50061 ...                                      # the environment
    --additional-config '{"gdn": {"server": "127.0.0.1:50061"}}'        # wins over the environment

Thread safety: free functions and plain values.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

KEY = "gdn"
PREFIX = "GDN_"
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off", ""}


@dataclass(frozen=True)
class Options:
    """The options, each with its variable in the environment.

    Attributes:
        server: GDN_SERVER: address of the server, or several, separated by commas: one for each tensor-parallel rank
            if they have slices of the heads, or each with some of the layers. "": the plugin changes nothing.
        model: GDN_MODEL: name of the served model. "": the only one.
        retry_seconds: GDN_RETRY_SECONDS: how long a call is repeated if the server does not answer. After that the
            requests of the step fail.
        replay_bytes: GDN_REPLAY_BYTES: bytes of inputs that are kept for each request, to replay them if a server
            restarts. 0: vLLM computes the lost requests again instead.
        recoveries: GDN_RECOVERIES: how often vLLM computes a request again in a row, before the request fails.
        grace_seconds: GDN_GRACE_SECONDS: seconds that sessions live on the server after the engine has died.
        shared_memory: GDN_SHARED_MEMORY: share memory with a server on this host.
        verify: GDN_VERIFY: compare the checkpoint's weights with those of the server, by digests.
        record: GDN_RECORD: file that the scheduler's outputs are written to, for tests. "": none.

    """

    server: str = ""
    model: str = ""
    retry_seconds: float = 30.0
    replay_bytes: int = 0
    recoveries: int = 3
    grace_seconds: float = 60.0
    shared_memory: bool = True
    verify: bool = True
    record: str = ""

    @property
    def servers(self) -> list[str]:
        """The addresses."""
        return [one.strip() for one in self.server.split(",") if one.strip()]


def _value(name: str, kind: type, given: Any) -> Any:
    """Returns an option's value as its type.

    Raises:
        ValueError: the value does not fit.

    """
    if kind is bool and not isinstance(given, bool):
        word = str(given).lower()
        if word not in _TRUE | _FALSE:
            raise ValueError(f"gdn option {name} is {given!r}, expected true or false")
        return word in _TRUE
    if name == "server" and isinstance(given, (list, tuple)):
        return ",".join(str(one) for one in given)
    try:
        return kind(given)
    except (TypeError, ValueError):
        raise ValueError(f"gdn option {name} is {given!r}, expected a value of type {kind.__name__}") from None


def read(additional_config: Any, environment: Mapping[str, str] | None = None) -> Options | None:
    """Returns the options, or None if no server is named.

    Args:
        additional_config: vLLM's `additional_config`.
        environment: variables. None: those of the process.

    Raises:
        ValueError: an option is unknown or has a wrong value.

    """
    environment = os.environ if environment is None else environment
    kinds = {one.name: type(one.default) for one in fields(Options)}
    given: dict[str, Any] = {}
    for name in kinds:
        if (value := environment.get(PREFIX + name.upper())) is not None:
            given[name] = value
    own = additional_config.get(KEY, {}) if isinstance(additional_config, Mapping) else {}
    if not isinstance(own, Mapping):
        raise ValueError(f"additional_config[{KEY!r}] is {own!r}, expected a map of options")
    if unknown := sorted(set(own) - set(kinds)):
        raise ValueError(f"gdn has no options {', '.join(unknown)}; expected some of {', '.join(kinds)}")
    given.update(own)
    options = Options(**{name: _value(name, kinds[name], value) for name, value in given.items()})
    return options if options.servers else None
