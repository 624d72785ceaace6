"""Puts remote layers into a loaded model.

Thread safety: one thread attaches a model, while no other thread uses it.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import torch

from gdn_client.client import Client
from gdn_client.digests import LayerComparison, compare_layer
from gdn_client.proto.gdn.v1.tensor_pb2 import DecayKind
from gdn_client.sliced import SlicedClient
from gdn_client.torch.cache_layer import remote_layer_of
from gdn_client.torch.compatibility import LayerCall, check_cache, check_parameters, layer_call
from gdn_client.torch.host import LayerHost
from gdn_client.torch.releases import unknown
from gdn_client.torch.remote_layer import RemoteGatedDeltaNet

LOCAL_LAYER = re.compile(
    r"(Qwen3Next|Qwen3_5|Qwen3_5Moe|Qwen4ExpText|OlmoHybrid)GatedDeltaNet"
    r"|(KimiLinear|BailingHybrid)DeltaAttention|Glm5NextTextLinearAttention"
)
# Names of a decoder layer's linear attention. Attention layers use some of them too, so the class decides.
LAYER_NAMES = ("linear_attn", "self_attn")
VERIFY_TOKENS = [3, 2]  # in the first step, and in a second one that continues from it
# Highest relative error of the outputs' norm. Rounding to bfloat16 makes about 0.01, other weights make about 1.
VERIFY_ERROR = 0.1


class _Place(NamedTuple):
    """The place of a decoder layer's linear attention in the model."""

    parent: torch.nn.Module
    name: str
    module: torch.nn.Module


class Attachment:
    """Remote layers in a model. A `with` block calls `close` at its end."""

    def __init__(self, model: torch.nn.Module, host: LayerHost, owns_client: bool, keep_local: bool) -> None:
        self.model = model
        self.host = host
        self.freed_bytes = 0
        self._owns_client = owns_client
        self._keep_local = keep_local
        self._compiled: bool | None = None  # the model's generation_config.disable_compile before
        self._replaced: list[_Place] = []  # the local layers

    def __repr__(self) -> str:
        return f"<{type(self.model).__name__} with {self.host}, {self.freed_bytes / 1e6:.0f} MB of weights freed>"

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def layers(self) -> list[int]:
        """Indices of the remote layers."""
        return self.host.layers

    def replace(self, local: dict[int, _Place]) -> None:
        """Replaces local layers by remote ones. The local ones are freed unless `keep_local` was set.

        For internal use.
        """
        for index in self.host.layers:
            place = local[index]
            if self._keep_local:
                self._replaced.append(place)
            else:
                self.freed_bytes += sum(p.numel() * p.element_size() for p in place.module.parameters())
            remote = RemoteGatedDeltaNet(self.host, index)
            remote.train(place.module.training)
            setattr(place.parent, place.name, remote)
        # generate() compiles the model if the cache has fixed shapes. Between remote layers that makes a graph for each
        # piece, recorded again at each length, which is far slower.
        if (config := getattr(self.model, "generation_config", None)) is not None and self._compiled is None:
            self._compiled = bool(config.disable_compile)
            config.disable_compile = True
        if not _local_layers(self.model):
            # Tells generate() that states can be taken back, as remote ones can.
            self.model._is_stateful = False  # type: ignore[assignment]

    def detach(self) -> None:
        """Puts the local layers back, and closes the attachment.

        Raises:
            RuntimeError: the local layers were not kept.

        """
        if not self._keep_local:
            raise RuntimeError("the local layers were freed; attach with keep_local=True, or load the model again")
        for place in self._replaced:
            setattr(place.parent, place.name, place.module)
        self.model.__dict__.pop("_is_stateful", None)
        if self._compiled is not None:
            config: Any = self.model.generation_config
            config.disable_compile = self._compiled
        self.close()

    def close(self) -> None:
        """Deletes all sessions of the layers. Also closes the connection, if `attach` has made it.

        Existing caches cannot be used any more. The remote layers stay in the model, and raise RuntimeError when they
        are called.
        """
        self.host.close()
        if self._owns_client:
            self.host.client.close()


def attach(
    model: torch.nn.Module,
    target: str | Client | SlicedClient | Sequence[str],
    layers: Iterable[int] | None = None,
    *,
    remote_model: str | None = None,
    keep_local: bool = False,
    verify: bool = True,
    allow_uncompared: bool = False,
    idle_ttl: float | None = None,
    **connection: Any,
) -> Attachment:
    """Replaces the Gated DeltaNet layers of a loaded model by those of a server.

    `generate()` works as before, with batches, streams, sampling, beams, assisted generation and static caches. To use
    several servers, call `attach` once for each, with its layers.

    Args:
        model: a qwen3_next, qwen3_5 (or their MoE forms), qwen4_exp, olmo_hybrid, kimi_linear, glm5_next or
            bailing_hybrid model, with or without its head. The installed transformers must have the class.
        target: "HOST:PORT" or "unix:/PATH", or a list of these if each server holds some of the model's heads. Or a
            Client or SlicedClient, which is then not closed.
        layers: indices of decoder layers. None: all Gated DeltaNet layers that are still local.
        remote_model: name of the served model. None: the only one.
        keep_local: keep the local layers in memory, so that `Attachment.detach` can put them back. Otherwise their
            memory is freed.
        verify: first compare each layer with the local one. Its weights are compared by the server's digests, if the
            server sends them. Its output is compared on a few random tokens in two steps with a cache. This finds other
            weights, and a transformers whose caches do not work with remote layers. Layers without local weights (on
            the device "meta") are not compared.
        allow_uncompared: accept layers whose weights cannot be compared by digests, with a warning. The reason is
            another dtype than in the server's checkpoint, a GGUF file or an adapter. Outputs are compared all the same.
        idle_ttl: seconds without a step after which the server deletes a sequence. None: the server's default.
        connection: arguments of the Client that is made for a target.

    Raises:
        TypeError: the target is neither a string, nor a client, nor a list of strings.
        ValueError: the model has no such layers, or they are attached already, or the server's layers differ, or
            cannot be compared. Also if the target is empty, is too long or has an invalid port.
        NoServerError: no server answers at the target.
        RuntimeError: this release of transformers uses layers or caches in a way that the package does not know.
        GdnError: the server has refused a call.

    """
    given = None if layers is None else sorted(layers)
    with contextlib.ExitStack() as undo:
        client = _client_of(target, connection)  # checks the target, and sends nothing yet
        if client is not target:
            undo.callback(client.close)
        local = _local_layers(model)
        wanted = _checked_layers(model, local, given)
        host = LayerHost(client, remote_model, wanted, idle_ttl=idle_ttl)
        undo.callback(host.close)
        for index in wanted:
            check_parameters(local[index].module)
            _check_dimensions(local[index].module, host)
        call = layer_call(model, _first_layer(model)) if wanted else None
        check_cache(host, None if call is None else call.cache)
        if verify:
            modules = {index: local[index].module for index in wanted}
            _compare_weights(modules, host, allow_uncompared)
            _verify(modules, host, call)
        attachment = Attachment(model, host, client is not target, keep_local)
        attachment.replace({index: local.pop(index) for index in wanted})
        undo.pop_all()
    return attachment


def _checked_layers(model: torch.nn.Module, local: dict[int, _Place], given: list[int] | None) -> list[int]:
    """Returns the layers to attach, which are all local ones if `given` is None. Raises ValueError if one is not."""
    remote = _remote_layers(model)
    if remote and (not local or set(given or ()) & set(remote)):
        hosts = ", ".join(sorted({str(layer.host) for layer in remote.values()}))
        raise ValueError(
            f"layers {sorted(remote)} of {type(model).__name__} are attached already, to {hosts}; expected layers that "
            f"are still local ({sorted(local)}). To attach these again, call detach() of an attachment with "
            "keep_local=True, or load the model again"
        )
    if not local:
        raise ValueError(
            f"{type(model).__name__} has no local Gated DeltaNet layers; expected qwen3_next, qwen3_5, qwen4_exp, "
            "olmo_hybrid, kimi_linear, glm5_next or bailing_hybrid"
        )
    wanted = sorted(local) if given is None else given
    if missing := sorted(set(wanted) - set(local)):
        raise ValueError(f"layers {missing} are no local Gated DeltaNet layers, expected of {sorted(local)}")
    return wanted


def _client_of(
    target: str | Client | SlicedClient | Sequence[str], connection: dict[str, Any]
) -> Client | SlicedClient:
    if isinstance(target, (Client, SlicedClient)):
        if connection:
            raise TypeError(
                f"{', '.join(sorted(connection))} cannot be set on a client that is given; make it with them"
            )
        return target
    if isinstance(target, (list, tuple)):
        return SlicedClient(target, **connection)
    return Client(cast(str, target), **connection)  # raises TypeError unless it is a string


def _linear_attention(parent: torch.nn.Module, *, remote: bool) -> _Place | None:
    """Finds a decoder layer's linear attention. Finds a remote one only if `remote` is set."""
    for name in LAYER_NAMES:
        module = getattr(parent, name, None)
        if not isinstance(module, torch.nn.Module):
            continue
        if LOCAL_LAYER.fullmatch(type(module).__name__) or (remote and isinstance(module, RemoteGatedDeltaNet)):
            return _Place(parent, name, module)
    return None


def _local_layers(model: torch.nn.Module) -> dict[int, _Place]:
    """Returns the local Gated DeltaNet layers, by layer index."""
    places = (_linear_attention(parent, remote=False) for parent in model.modules())
    return {int(place.module.layer_idx): place for place in places if place is not None}  # type: ignore[arg-type]


def _remote_layers(model: torch.nn.Module) -> dict[int, RemoteGatedDeltaNet]:
    """Returns the layers that an earlier `attach` has put in, by layer index."""
    return {part.layer_idx: part for part in model.modules() if isinstance(part, RemoteGatedDeltaNet)}


def _first_layer(model: torch.nn.Module) -> torch.nn.Module:
    """Returns the Gated DeltaNet layer that is called first. It may be remote already."""
    places = (_linear_attention(parent, remote=True) for parent in model.modules())
    return next(place.module for place in places if place is not None)


def _check_dimensions(local: Any, host: LayerHost) -> None:
    dims = host.model.dims
    per_channel = dims.decay == DecayKind.DECAY_KIND_PER_CHANNEL
    sizes = (dims.hidden_size, dims.key_heads, dims.value_heads, dims.key_dim, dims.value_dim, dims.conv_width)
    remote = (*sizes, per_channel)
    own: tuple[Any, ...]
    if hasattr(local, "forget_gate"):  # KDA
        own = (local.hidden_size, *[local.num_heads] * 2, *[local.head_dim] * 2, local.conv_kernel_size, True)
    else:
        heads = (local.num_k_heads, local.num_v_heads, local.head_k_dim, local.head_v_dim)
        own = (local.hidden_size, *heads, local.conv_kernel_size, False)
    if own != remote:
        names = "hidden size, key heads, value heads, key dim, value dim, convolution width, decays by channel"
        raise ValueError(f"the model's layers are {own} ({names}), those of {host} are {remote}")


def _compare_weights(local: dict[int, torch.nn.Module], host: LayerHost, allow_uncompared: bool) -> None:
    """Raises ValueError if local weights are not those of the server, as far as digests tell."""
    digests = {digest.layer: digest for digest in host.model.layer_digests}  # none: the server is of version 0.1.0
    result = LayerComparison(str(host))
    try:
        for index, module in local.items():
            if index in digests and not any(p.device.type == "meta" for p in module.parameters()):
                compare_layer(host.model, digests[index], module.state_dict(), result)
    except ImportError as error:
        warnings.warn(f"weights are not compared with those of {host}: {error}", UserWarning, stacklevel=3)
        return
    try:
        result.check(allow_uncompared=allow_uncompared)
    except ValueError as error:
        raise ValueError(f"{error}. With verify=False nothing is compared") from None


def _verify(local: dict[int, torch.nn.Module], host: LayerHost, call: LayerCall | None) -> None:
    try:
        for index, module in local.items():
            _check_outputs(module, host, index, call)
    finally:
        if call is not None:
            remote_layer_of(call.cache, host, host.layers[0]).reset()


def _check_outputs(local: torch.nn.Module, host: LayerHost, index: int, call: LayerCall | None) -> None:
    parameter = next(local.parameters())
    if parameter.device.type == "meta":
        return
    generator = torch.Generator("cpu").manual_seed(index)
    shape = (1, sum(VERIFY_TOKENS), host.model.dims.hidden_size)
    noise = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
    x = noise.to(parameter.device, parameter.dtype)
    layer = RemoteGatedDeltaNet(host, index)
    with torch.no_grad():
        remote = [layer(x)] if call is None else [call(layer, part) for part in x.split(VERIFY_TOKENS, dim=1)]
        own = local(x).split([y.shape[1] for y in remote], dim=1)
    pairs = zip(remote, own, strict=True)
    errors = [float((y.float() - want.float()).norm() / want.float().norm()) for y, want in pairs]
    if not errors[0] <= VERIFY_ERROR:
        raise ValueError(
            f"layer {index} of {host} computes something else than the model's (relative error {errors[0]:.2g}): it "
            "has other weights; serve the same checkpoint, or pass verify=False"
        )
    if not errors[-1] <= VERIFY_ERROR:
        raise RuntimeError(
            unknown(f"a second step of layer {index} does not go on from the first (relative error {errors[-1]:.2g})")
        )
