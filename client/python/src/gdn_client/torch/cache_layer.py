"""A layer of transformers' cache whose state is on a server.

Thread safety: like transformers' caches, for one thread at a time.
"""

from __future__ import annotations

import copy
from typing import Any, NoReturn, cast

import torch
from transformers import Cache

from gdn_client.torch.host import LayerHost
from gdn_client.torch.releases import unknown
from gdn_client.torch.sequences import RemoteSequences

try:
    from transformers.cache_utils import LinearAttentionCacheLayerMixin
except ImportError as missing:
    raise ImportError(unknown(str(missing))) from missing


class RemoteCacheLayer(LinearAttentionCacheLayerMixin):
    """Replaces a LinearAttentionLayer of a cache.

    The layers of one host share their sequences. When a cache calls a method on all of its layers, only the leading
    layer acts, for all of them.
    """

    # A call to another machine cannot be part of a compiled graph.
    is_compileable = False

    def __init__(self, sequences: RemoteSequences, *, leads: bool, record_past: bool = False) -> None:
        super().__init__()
        self.sequences = sequences
        self.record_past = record_past
        self._leads = leads
        self.has_previous_state: dict[int, bool] = {0: False}
        # A local layer reads these attributes directly. So they raise an error, instead of letting code of transformers
        # that is not overridden below skip the remote states as if there were none.
        self.conv_states = self.recurrent_states = _Elsewhere(sequences)
        self.is_conv_states_initialized = self.is_recurrent_states_initialized = {0: True}

    def __repr__(self) -> str:
        return f"RemoteCacheLayer({self.sequences.host.client.target}, {len(self.sequences)} rows)"

    def __deepcopy__(self, memo: dict[int, Any]) -> RemoteCacheLayer:
        twin = RemoteCacheLayer(copy.deepcopy(self.sequences, memo), leads=self._leads, record_past=self.record_past)
        twin.has_previous_state = dict(self.has_previous_state)
        memo[id(self)] = twin
        return twin

    @property
    def is_croppable(self) -> bool:
        """Whether `crop` restores the state exactly. It does."""
        return True

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        if self._leads:
            self.sequences.select(beam_idx.tolist())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps the named rows, in that order."""
        if self._leads:
            rows = torch.arange(len(self.sequences), dtype=torch.long, device="cpu")[indices.cpu()]
            self.sequences.select(rows.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats each row `repeats` times."""
        if self._leads:
            self.sequences.select([row for row in range(len(self.sequences)) for _ in range(repeats)])

    def crop(self, tokens_to_remove: int) -> None:
        if not self.record_past:
            raise RuntimeError("crop of a cache that records no past; call activate_past_recording before the tokens")
        if tokens_to_remove > 0:
            raise RuntimeError(f"crop({tokens_to_remove}), expected minus the number of tokens to remove")
        if self._leads:
            self.sequences.crop(-tokens_to_remove)

    def reset(self) -> None:
        self.has_previous_state = dict.fromkeys(self.has_previous_state, False)
        if self._leads:
            self.sequences.reset()

    def offload(self) -> None:
        """Does nothing, because the states take no memory here."""

    def prefetch(self) -> None:
        """Does nothing, like `offload`."""

    def lazy_initialization(self, *_: Any, **__: Any) -> None:
        self.conv_states[0]

    def update_conv_state(self, *_: Any, **__: Any) -> torch.Tensor:
        return cast(torch.Tensor, self.conv_states[0])

    def update_recurrent_state(self, *_: Any, **__: Any) -> torch.Tensor:
        return cast(torch.Tensor, self.recurrent_states[0])


class _Elsewhere(dict[int, Any]):
    """States that are on the server. Reading one raises RuntimeError."""

    def __init__(self, sequences: RemoteSequences) -> None:
        super().__init__()
        self._host = sequences.host

    def __getitem__(self, _: int) -> NoReturn:
        raise RuntimeError(
            f"the cache's states are at {self._host.client.target}; a model that computes the layer itself cannot go "
            "on from them"
        )


def remote_layer_of(cache: Cache, host: LayerHost, layer: int) -> RemoteCacheLayer:
    """Returns the cache's layer. If it is still local and unused, first replaces all of the host's layers in the cache.

    Raises:
        ValueError: the cache has a local state, a state on another host, or no such layer.

    """
    if layer >= len(cache.layers):
        raise ValueError(
            f"the cache has {len(cache.layers)} layers and none for layer {layer}; make it of the model's config: "
            "DynamicCache(config=model.config)"
        )
    found = cache.layers[layer]
    if isinstance(found, RemoteCacheLayer):
        if found.sequences.host is not host:
            raise ValueError(f"the cache's states are at {found.sequences.host}, the layer at {host}; make a new cache")
        return found
    unused: dict[int, LinearAttentionCacheLayerMixin] = {}
    for index in host.layers:
        local = cache.layers[index]
        if not isinstance(local, LinearAttentionCacheLayerMixin) or any(local.has_previous_state.values()):
            raise ValueError(f"layer {index} of the cache has been used locally; make a new cache after attaching")
        unused[index] = local
    sequences = RemoteSequences(host)
    for index, local in unused.items():
        cache.layers[index] = RemoteCacheLayer(sequences, leads=index == host.layers[0], record_past=local.record_past)
    return cast(RemoteCacheLayer, cache.layers[layer])
