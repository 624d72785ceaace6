"""Own weights against a server's digests, computed from the bytes of the golden checkpoints."""

from __future__ import annotations

import json
import re
import struct
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import REPOSITORY
from server import Server, running

import gdn_client
from gdn_client import RawTensor, compare_layers
from gdn_client.proto.gdn.v1 import info_pb2

pytest.importorskip("xxhash")

GOLDEN = REPOSITORY / "tests" / "golden"
NUMPY = {"F32": np.float32, "F16": np.float16}
# Whole layers, interleaved and separate projections, block scales, decays by channel, other modules' names.
NAMES = [
    "qwen3_5_1",
    "qwen3_next_5",
    "fp8_qwen3_5_1",
    "fp8_qwen3_next_1",
    "qwen4_exp_1",
    "olmo_hybrid_1",
    "kimi_linear_1",
    "glm5_next_1",
    "bailing_hybrid_1",
]


def read(folder: Path) -> dict[str, RawTensor]:
    """The tensors of a checkpoint's files."""
    tensors: dict[str, RawTensor] = {}
    for path in folder.glob("model*.safetensors"):
        content = memoryview(path.read_bytes())
        begin = 8 + struct.unpack("<Q", content[:8])[0]
        for name, entry in json.loads(bytes(content[8:begin])).items():
            if name != "__metadata__":
                first, end = entry["data_offsets"]
                tensors[name] = RawTensor(entry["dtype"], tuple(entry["shape"]), content[begin + first : begin + end])
    assert tensors, f"no model in {folder}"
    return tensors


def as_arrays(tensors: dict[str, RawTensor]) -> dict[str, np.ndarray]:
    return {
        name: np.frombuffer(one.data, NUMPY[one.format]).reshape(one.shape)
        for name, one in tensors.items()
        if one.format in NUMPY
    }


@pytest.fixture(scope="module")
def models_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    quantized = tmp_path_factory.mktemp("server")
    flags = [flag for name in NAMES for flag in ("--model", f"{name}={GOLDEN / name}")]
    gguf = ("--model", f"gguf={GOLDEN / 'gguf_qwen35_1' / 'f32.gguf'}")
    with running(quantized, *flags, *gguf) as one:
        yield one


@pytest.fixture()
def models(models_server: Server) -> Iterator[gdn_client.Client]:
    with gdn_client.Client(models_server.target) as one:
        yield one


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_equals_what_the_server_has_of_it(models: gdn_client.Client, name: str) -> None:
    model = models.model(name)
    result = compare_layers(model, read(GOLDEN / name))
    assert (result.equal, result.different, result.not_comparable) == (list(model.gdn_layers), [], {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result.check()


def test_arrays_of_any_order_are_compared(models: gdn_client.Client) -> None:
    arrays = as_arrays(read(GOLDEN / "qwen3_5_1"))
    for change in (np.asfortranarray, lambda array: array.astype(array.dtype.newbyteorder(">"))):
        assert compare_layers(models.model("qwen3_5_1"), {n: change(a) for n, a in arrays.items()}).equal == [0, 1, 2]


def test_every_tensor_of_a_layer_counts(models: gdn_client.Client) -> None:
    model, arrays = models.model("qwen3_next_5"), as_arrays(read(GOLDEN / "qwen3_next_5"))
    layer = model.gdn_layers[1]
    for tensor in model.digest_tensors:
        name = f"model.layers.{layer}.linear_attn.{tensor}"
        changed = arrays[name].copy()
        changed.flat[-1] = np.nextafter(changed.flat[-1], np.float32(9))
        result = compare_layers(model, {**arrays, name: changed})
        assert (result.different, len(result.equal)) == ([layer], len(model.gdn_layers) - 1), tensor
        with pytest.raises(ValueError, match=rf"layers \[{layer}\] of models/qwen3_next_5 .* other weights"):
            result.check(allow_uncompared=True)


def test_layers_of_another_place_are_different(models: gdn_client.Client) -> None:
    arrays = as_arrays(read(GOLDEN / "qwen3_5_1"))
    swapped = {n.replace(".layers.0.", ".layers.x.").replace(".layers.1.", ".layers.0."): a for n, a in arrays.items()}
    swapped = {n.replace(".layers.x.", ".layers.1."): a for n, a in swapped.items()}
    assert compare_layers(models.model("qwen3_5_1"), swapped).different == [0, 1]


def test_another_dtype_is_refused_unless_it_is_allowed(models: gdn_client.Client) -> None:
    halves = {n: a.astype(np.float16) for n, a in as_arrays(read(GOLDEN / "qwen3_5_1")).items()}
    result = compare_layers(models.model("qwen3_5_1"), halves)
    assert (result.equal, result.different, list(result.not_comparable)) == ([], [], [0, 1, 2])
    said = r"layers \[0, 1, 2\]: the server's checkpoint has F32 matrices and F32 vectors, .* are F16 and F16"
    with pytest.raises(ValueError, match=said):
        result.check()
    with pytest.warns(UserWarning, match=said):
        result.check(allow_uncompared=True)
    # One vector of another dtype is enough.
    arrays = as_arrays(read(GOLDEN / "qwen3_5_1"))
    name = "model.layers.1.linear_attn.A_log"
    result = compare_layers(models.model("qwen3_5_1"), {**arrays, name: arrays[name].astype(np.float16)})
    assert (result.equal, list(result.not_comparable)) == ([0, 2], [1])


def test_integers_are_not_comparable(models: gdn_client.Client) -> None:
    arrays = as_arrays(read(GOLDEN / "qwen3_5_1"))
    name = "model.layers.2.linear_attn.out_proj.weight"
    result = compare_layers(models.model("qwen3_5_1"), {**arrays, name: arrays[name].astype(np.int8)})
    assert (result.equal, list(result.not_comparable)) == ([0, 1], [2])
    assert "int8" in result.not_comparable[2]


def test_a_gguf_file_is_not_comparable(models: gdn_client.Client) -> None:
    tensors = {n.replace("model.language_model", "model"): t for n, t in read(GOLDEN / "qwen3_5_1").items()}
    result = compare_layers(models.model("gguf"), tensors)
    assert not result.equal
    assert not result.different
    with pytest.raises(ValueError, match=r"GGUF F32"):
        result.check()


def test_what_the_server_does_after_reading_changes_nothing(tmp_path: Path) -> None:
    name = "qwen3_5_1"
    flags = ("--model", f"{name}={GOLDEN / name}", "--layers", "1,2", "--heads", "2-3/4", "--quantize", "q8_0")
    with running(tmp_path, *flags[:6]) as server, gdn_client.Client(server.target) as client:
        model = client.model(name)
        assert model.HasField("heads")
        assert compare_layers(model, read(GOLDEN / name)).equal == [1, 2]
    with running(tmp_path, *flags[:2], *flags[6:]) as server, gdn_client.Client(server.target) as client:
        assert compare_layers(client.model(name), read(GOLDEN / name)).equal == [0, 1, 2]


def test_an_adapter_is_not_comparable(models: gdn_client.Client) -> None:
    model = models.model("qwen3_5_1")
    model.layer_digests[1].has_adapter = True
    result = compare_layers(model, read(GOLDEN / "qwen3_5_1"))
    assert (result.equal, list(result.not_comparable)) == ([0, 2], [1])
    with pytest.raises(ValueError, match="adapter"):
        result.check()


def test_the_layers_that_are_asked_for_are_compared(models: gdn_client.Client) -> None:
    model, tensors = models.model("qwen3_5_1"), read(GOLDEN / "qwen3_5_1")
    assert compare_layers(model, tensors, [2, 0]).equal == [0, 2]
    with pytest.raises(ValueError, match=r"does not serve layers \[3\], it has \[0, 1, 2\]"):
        compare_layers(model, tensors, [0, 3])
    some = {n: t for n, t in tensors.items() if ".layers.1." not in n}
    assert compare_layers(model, some).equal == [0, 2]
    with pytest.raises(ValueError, match=r"no A_log of layers \[1\]"):
        compare_layers(model, some, [1])
    with pytest.raises(ValueError, match=r"no layer of models/qwen3_5_1"):
        compare_layers(model, {})
    del some["model.layers.2.linear_attn.dt_bias"]
    result = compare_layers(model, some)
    assert (result.equal, result.not_comparable) == ([0], {2: "the local tensors lack dt_bias"})
    with pytest.raises(ValueError, match="layer 0 is given twice"):
        compare_layers(
            model, {**tensors, "copy.layers.0.linear_attn.A_log": tensors["model.layers.0.linear_attn.A_log"]}
        )


def test_a_server_without_digests_is_refused() -> None:
    with pytest.raises(ValueError, match="no digests of layers"):
        compare_layers(info_pb2.Model(name="models/old"), {})


@pytest.mark.parametrize("name", ["olmo_hybrid_1", "kimi_linear_1", "glm5_next_1", "bailing_hybrid_1"])
def test_names_and_convolutions_may_be_those_of_transformers(models: gdn_client.Client, name: str) -> None:
    model = models.model(name)
    joined = {
        re.sub(
            r"\.((f_(a_|b_)?proj)\.weight|dt_bias|A_log)$",
            r".forget_gate.\1",
            each.replace(".attention.", ".self_attn."),
        )
        .replace(".linear_attn.forget_gate.", ".linear_attn.")
        .replace(".self_attn.dense.", ".self_attn.o_proj."): array
        for each, array in as_arrays(read(GOLDEN / name)).items()
    }
    for layer in model.gdn_layers:
        place = next(
            each.removesuffix("q_conv1d.weight") for each in joined if f"layers.{layer}." in each and "q_conv" in each
        )
        parts = [joined.pop(f"{place}{part}_conv1d.weight") for part in "qkv"]
        joined[f"{place}conv1d.weight"] = np.concatenate(parts)
    assert compare_layers(model, joined).equal == list(model.gdn_layers)
    joined[f"{place}conv1d.weight"] = joined[f"{place}conv1d.weight"][::-1]
    assert compare_layers(model, joined).different == [model.gdn_layers[-1]]


def test_without_xxhash_the_error_says_what_to_install(
    models: gdn_client.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(ImportError, match="pip install"):
        compare_layers(models.model("qwen3_5_1"), read(GOLDEN / "qwen3_5_1"))
