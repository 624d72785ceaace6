"""Compares a program's own weights with those of a server, by the digests of layers in `Model.layer_digests`.

    model = client.model("qwen")
    gdn_client.compare_layers(model, model_of_transformers.state_dict()).check()

A digest covers a layer's tensors as the server's checkpoint has them, so the own tensors must have the checkpoint's
dtypes. Weights that are equal in value but stored in another format cannot be compared. Needs xxhash.
Thread safety: free functions and plain values.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeAlias, cast

import numpy as np

from gdn_client.proto.gdn.v1 import info_pb2
from gdn_client.sliced import heads_of
from gdn_client.tensors import Array, element_name, is_torch

_FORMATS = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
}
_ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1}
_SCALE_SUFFIX = "_scale_inv"
# The one tensor that every layer has, and that no other module of a decoder layer has.
_MARK = "A_log"
# Modules of transformers rename some tensors: those of KDA's decay gate, and the out-projection of Bailing.
_GATE = "forget_gate."
_OUT, _DENSE = "o_proj.weight", "dense.weight"
_CONVOLUTIONS = ("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight")


@dataclass(frozen=True)
class RawTensor:
    """A tensor as a file has it, for elements that numpy has no dtype for.

    Attributes:
        format: "F32", "F16", "BF16" or "F8_E4M3".
        shape: the dimensions.
        data: the elements, row-major and little-endian.

    """

    format: str
    shape: tuple[int, ...]
    data: bytes | memoryview


Tensor: TypeAlias = Array | RawTensor


class _Missing(Exception):
    """The tensors lack one that the digest covers."""


@dataclass(frozen=True)
class LayerComparison:
    """The result of `compare_layers`.

    Attributes:
        model: the model's name and fingerprint, for messages.
        equal: layers whose weights are those of the server.
        different: layers whose weights are others.
        not_comparable: layers whose weights may be the same or not, each with the reason.

    """

    model: str
    equal: list[int] = field(default_factory=list)
    different: list[int] = field(default_factory=list)
    not_comparable: dict[int, str] = field(default_factory=dict)

    def check(self, *, allow_uncompared: bool = False) -> None:
        """Refuses weights that are not those of the server.

        Args:
            allow_uncompared: accept layers that cannot be compared, with a UserWarning that names them.

        Raises:
            ValueError: some layers are different, or cannot be compared and `allow_uncompared` is not set.

        """
        if self.different:
            raise ValueError(
                f"layers {self.different} of {self.model} have other weights than the local layers (their digests "
                "differ); serve the checkpoint that is loaded here"
            )
        if not self.not_comparable:
            return
        reasons = "; ".join(
            f"layers {[layer for layer, why in self.not_comparable.items() if why == reason]}: {reason}"
            for reason in dict.fromkeys(self.not_comparable.values())
        )
        message = f"weights cannot be compared with those of {self.model}: {reasons}"
        if not allow_uncompared:
            raise ValueError(f"{message}. Load and serve them in the same format, or pass allow_uncompared=True")
        warnings.warn(message, UserWarning, stacklevel=2)


def compare_layers(
    model: info_pb2.Model, tensors: Mapping[str, Tensor], layers: Iterable[int] | None = None
) -> LayerComparison:
    """Compares the weights of layers with those of the server. Makes no call.

    Args:
        model: the served model, as `Client.model` returns it.
        tensors: own tensors by their names in a checkpoint or in a model of transformers, such as
            "model.layers.0.linear_attn.A_log". Others may be among them. Whole tensors with all heads, as numpy or
            torch arrays of any device, or as RawTensor. A matrix in float8_e4m3fn needs its scales, in the checkpoint's
            dtype ("..._scale_inv").
        layers: indices of the layers to compare. None: all served ones that the tensors have.

    Raises:
        ValueError: the server serves none of the layers, or does not send digests; a tensor of a layer is missing in
            part, or given twice.
        ImportError: xxhash is not installed.

    """
    digests = {digest.layer: digest for digest in model.layer_digests}
    if not digests:
        raise ValueError(f"{model.name} has no digests of layers: its server is older than they are")
    places = _places(tensors)
    wanted = sorted(set(places) & set(digests)) if layers is None else sorted(layers)
    if not wanted:
        raise ValueError(
            f"no layer of {model.name} is among the tensors: expected an A_log below layers {sorted(digests)}"
        )
    if unknown := sorted(set(wanted) - set(digests)):
        raise ValueError(f"{model.name} does not serve layers {unknown}, it has {sorted(digests)}")
    if missing := sorted(set(wanted) - set(places)):
        raise ValueError(f"the tensors have no A_log of layers {missing}")
    result = LayerComparison(f"{model.name} ({model.fingerprint})")
    for layer in wanted:
        own = {
            name.removeprefix(places[layer]): tensor
            for name, tensor in tensors.items()
            if name.startswith(places[layer])
        }
        compare_layer(model, digests[layer], own, result)
    return result


def compare_layer(
    model: info_pb2.Model, digest: info_pb2.LayerDigest, own: Mapping[str, Tensor], result: LayerComparison
) -> None:
    """Compares one layer's tensors, by their names below its module, and adds the layer to the result."""
    layer = digest.layer
    if digest.has_adapter:
        result.not_comparable[layer] = "the server has merged an adapter into them"
        return
    if digest.format.startswith("GGUF "):
        result.not_comparable[layer] = f"the server has them from a GGUF file ({digest.format})"
        return
    try:
        candidates = [
            [(name, _canonical(name, tensor, model)) for name, tensor in named] for named in _named(model, own)
        ]
    except (_Missing, TypeError) as error:
        result.not_comparable[layer] = str(error)
        return
    formats = _formats_of(candidates[0])
    if formats != (digest.format, digest.vector_format):
        result.not_comparable[layer] = (
            f"the server's checkpoint has {digest.format} matrices and {digest.vector_format} vectors, the local "
            f"tensors are {formats[0]} and {formats[1]}"
        )
    elif any(_digest_of(layer, tensors) == digest.xxh3_128 for tensors in candidates):
        result.equal.append(layer)
    else:
        result.different.append(layer)


def _places(tensors: Mapping[str, Tensor]) -> dict[int, str]:
    """Returns the beginning of each layer's names, such as "model.layers.0.linear_attn.", by the layer's index."""
    places: dict[int, str] = {}
    for name in tensors:
        if found := re.fullmatch(rf"((?:.*\.)?layers\.(\d+)\.\w+\.)(?:{re.escape(_GATE)})?{_MARK}", name):
            layer = int(found[2])
            if layer in places:
                raise ValueError(
                    f"layer {layer} is given twice, as {places[layer]}{_MARK} and {name}; give one model's tensors"
                )
            places[layer] = found[1]
    return places


def _named(model: info_pb2.Model, own: Mapping[str, Tensor]) -> list[list[tuple[str, Tensor]]]:
    """Returns the digest's tensors in its order. Several lists if a joint convolution may be cut in several ways."""
    names = list(model.digest_tensors)
    own = {name.removeprefix(_GATE): tensor for name, tensor in own.items()}
    if _DENSE in names and _DENSE not in own and _OUT in own:
        own[_DENSE] = own[_OUT]
    if not all(name in own for name in _CONVOLUTIONS) and set(_CONVOLUTIONS) <= set(names) and "conv1d.weight" in own:
        # transformers joins the kernels of q, k and v when it loads them, and cuts three equal parts when it saves.
        joint = own["conv1d.weight"]
        cuts = [parts for parts in _cuts(model, int(joint.shape[0])) if not isinstance(joint, RawTensor)]
        wholes = [{**own, **_cut(cast(Any, joint), parts)} for parts in cuts]
    else:
        wholes = [own]
    lists = []
    for whole in wholes:
        if missing := [name for name in names if name not in whole]:
            raise _Missing(f"the local tensors lack {', '.join(missing)}")
        named = []
        for name in names:
            named.append((name, whole[name]))
            if _format_of(whole[name]) == "F8_E4M3":
                if name + _SCALE_SUFFIX not in whole:
                    raise _Missing(f"the local tensors lack {name}{_SCALE_SUFFIX}")
                named.append((_SCALE_SUFFIX, whole[name + _SCALE_SUFFIX]))
        lists.append(named)
    if not lists:
        raise _Missing(f"the local tensors lack {', '.join(_CONVOLUTIONS)}")
    return lists


def _cuts(model: info_pb2.Model, rows: int) -> list[tuple[int, int, int]]:
    """Returns the numbers of rows that q, k and v may have in a joint convolution."""
    group = model.dims.value_heads // model.dims.key_heads
    values = heads_of(model)[2]
    keys = values // group * model.dims.key_dim
    cuts = [(keys, keys, values * model.dims.value_dim)]
    if rows % 3 == 0:
        cuts.append((rows // 3,) * 3)
    return [cut for cut in dict.fromkeys(cuts) if sum(cut) == rows]


def _cut(joint: Any, parts: tuple[int, int, int]) -> dict[str, Tensor]:
    ends = np.cumsum(parts)
    return {
        name: joint[end - rows : end]
        for name, rows, end in zip(_CONVOLUTIONS, parts, (int(e) for e in ends), strict=True)
    }


def _format_of(tensor: Tensor) -> str:
    if isinstance(tensor, RawTensor):
        if tensor.format not in _ELEMENT_BYTES:
            raise TypeError(f"a local tensor is {tensor.format}, expected {', '.join(_ELEMENT_BYTES)}")
        return tensor.format
    name = element_name(tensor)
    if name not in _FORMATS:
        raise TypeError(f"a local tensor is {name}, expected {', '.join(_FORMATS)}")
    return _FORMATS[name]


def _bytes_of(tensor: Tensor) -> memoryview:
    """Returns the elements, row-major and little-endian. Copies only what is not so in host memory."""
    if isinstance(tensor, RawTensor):
        return memoryview(tensor.data).cast("B")
    if is_torch(tensor):
        torch: Any = sys.modules["torch"]
        host: Any = cast(Any, tensor).detach().cpu().contiguous()
        return memoryview(host.reshape(-1).view(torch.uint8).numpy())
    array = np.asarray(tensor)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _canonical(name: str, tensor: Tensor, model: info_pb2.Model) -> RawTensor:
    """Returns a tensor with the dimensions that a digest counts: some checkpoints have further ones of size 1."""
    kind, data = _format_of(tensor), _bytes_of(tensor)
    shape = tuple(int(dim) for dim in tensor.shape)
    if "conv1d" in name:
        shape = (shape[0], 1, shape[-1]) if len(shape) > 1 else shape
    elif _is_vector(name):
        shape = (int(np.prod(shape, dtype=np.int64)),)
    if name == _MARK:
        shape = (min(shape[0], heads_of(model)[2]),)
        data = data[: shape[0] * _ELEMENT_BYTES[kind]]
    if (size := int(np.prod(shape, dtype=np.int64)) * _ELEMENT_BYTES[kind]) != len(data):
        raise TypeError(f"{name} of shape {list(shape)} in {kind} has {len(data)} bytes, expected {size}")
    return RawTensor(kind, shape, data)


def _is_vector(name: str) -> bool:
    return name in (_MARK, "dt_bias") or name.endswith("norm.weight")


def _formats_of(tensors: Iterable[tuple[str, RawTensor]]) -> tuple[str, str]:
    """Returns the formats of the matrices, and of the other tensors, in the form of LayerDigest."""
    matrices: set[str] = set()
    others: set[str] = set()
    for name, tensor in tensors:
        if name != _SCALE_SUFFIX:
            (others if _is_vector(name) or "conv1d" in name else matrices).add(tensor.format)
    return "+".join(sorted(matrices)), "+".join(sorted(others))


def _digest_of(layer: int, tensors: Iterable[tuple[str, RawTensor]]) -> str:
    """Returns the digest that the message LayerDigest (proto/gdn/v1/info.proto) describes."""
    digest = _xxhash().xxh3_128()

    def add_integer(value: int) -> None:
        digest.update(value.to_bytes(8, "little"))

    def add_text(text: bytes | memoryview) -> None:
        add_integer(len(text))
        digest.update(text)

    add_integer(layer)
    for name, tensor in tensors:
        add_text(name.encode())
        add_text(tensor.format.encode())
        add_integer(len(tensor.shape))
        for dim in tensor.shape:
            add_integer(dim)
        add_text(tensor.data)
    return str(digest.hexdigest())


def _xxhash() -> ModuleType:
    try:
        import xxhash
    except ImportError:
        raise ImportError("digests of layers need the package xxhash: pip install 'gdn-client[digests]'") from None
    return xxhash
