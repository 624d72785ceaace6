"""Hugging Face models with remote layers, against the same models with their own."""

from __future__ import annotations

import contextlib
import copy
import gc
import inspect
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.17")

from conftest import REPOSITORY  # noqa: E402
from server import Server, running  # noqa: E402

import gdn_client  # noqa: E402
import gdn_client.torch as gdn_torch  # noqa: E402

# Where the local part runs; the server is GDN_SERVER's.
DEVICE = os.environ.get("GDN_TORCH_DEVICE", "cpu")
torch.set_default_device(DEVICE)

CHECKPOINTS = ["qwen3_next_1", "qwen3_next_5", "qwen3_5_1", "qwen3_5_5"]
# Families that later releases of transformers have, and their classes.
LATER = {
    "qwen4_exp_1": "Qwen4ExpForCausalLM",
    "olmo_hybrid_1": "OlmoHybridForCausalLM",
    "kimi_linear_1": "KimiLinearForCausalLM",
    "glm5_next_1": "Glm5NextForConditionalGeneration",
    "bailing_hybrid_1": "BailingHybridForCausalLM",
}
GOLDEN = REPOSITORY / "tests" / "golden"
LENGTHS = [7, 13, 21]
NEW_TOKENS = 64
SECONDS_TO_END = 60
# What models call their cache; past_key_values up to transformers 5.23.
CACHE = "cache" if "cache" in inspect.signature(transformers.Qwen3NextModel.forward).parameters else "past_key_values"
TIE = 1e-3  # logits this near are the same to two computers


@pytest.fixture(scope="module")
def models_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = [flag for name in (*CHECKPOINTS, *LATER) for flag in ("--model", f"{name}={GOLDEN / name}")]
    with running(tmp_path_factory.mktemp("models"), *flags) as one:
        yield one


def load(name: str) -> torch.nn.Module:
    of = getattr(transformers, LATER.get(name, "AutoModelForCausalLM"))
    return of.from_pretrained(GOLDEN / name).to(DEVICE).eval()


def kept(cache: transformers.Cache) -> dict[str, transformers.Cache]:
    """A model's argument."""
    return {CACHE: cache}


class Pair:
    """A model, and the same with remote layers."""

    def __init__(self, name: str, target: str) -> None:
        self.name, self.target = name, target
        self.local, self.remote = load(name), load(name)
        self.attachment = gdn_torch.attach(self.remote, target, remote_model=name)

    def inputs(self) -> dict[str, torch.Tensor]:
        """Three prompts of different lengths, padded on the left."""
        generator = torch.Generator(DEVICE).manual_seed(1)
        longest = max(LENGTHS)
        ids, mask = torch.zeros(len(LENGTHS), longest, dtype=torch.long), torch.zeros(len(LENGTHS), longest)
        for row, length in enumerate(LENGTHS):
            ids[row, longest - length :] = torch.randint(
                1, self.local.config.get_text_config().vocab_size, (length,), generator=generator
            )
            mask[row, longest - length :] = 1
        return {"input_ids": ids, "attention_mask": mask.long()}

    def one(self) -> dict[str, torch.Tensor]:
        """A single prompt."""
        return {name: tensor[-1:] for name, tensor in self.inputs().items()}

    def generate(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], **options) -> torch.Tensor:
        torch.manual_seed(2)
        with torch.no_grad():
            return model.generate(
                **inputs, **{"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0, **options}
            )

    def check(self, got: torch.Tensor, want: torch.Tensor) -> None:
        """The same greedy choices, up to where two were as good."""
        assert got.shape == want.shape
        padding = [0] * len(want) if len(want) == 1 else [max(LENGTHS) - length for length in LENGTHS]
        for row in range(len(want)):
            if (differ := (got[row] != want[row]).nonzero().flatten()).numel() == 0:
                continue
            at = int(differ[0])
            with torch.no_grad():
                logits = self.local(want[row : row + 1, padding[row] : at]).logits[0, -1]
            assert abs(float(logits[got[row, at]] - logits[want[row, at]])) < TIE, f"row {row} differs at {at}"

    def sessions(self) -> int:
        return len(list(self.attachment.host.client.sessions()))


@pytest.fixture(params=CHECKPOINTS)
def pair(request: pytest.FixtureRequest, models_server: Server) -> Iterator[Pair]:
    one = Pair(request.param, models_server.target)
    with one.attachment:
        yield one


@pytest.fixture()
def next_pair(models_server: Server) -> Iterator[Pair]:
    one = Pair("qwen3_next_5", models_server.target)
    with one.attachment:
        yield one


def ends_with(pair: Pair, sessions: int) -> bool:
    """Sessions are ended behind the caller's back."""
    until = time.monotonic() + SECONDS_TO_END
    while pair.sessions() != sessions and time.monotonic() < until:
        gc.collect()
        time.sleep(0.02)
    return pair.sessions() == sessions


def test_logits_are_those_of_the_local_model(pair: Pair) -> None:
    inputs = pair.inputs()
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        local, remote = (model(**inputs).logits[real] for model in (pair.local, pair.remote))
    torch.testing.assert_close(remote, local, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [{}, {"cache_implementation": "static"}],
    ids=["dynamic", "static"],
)
def test_greedy_search_is_the_same(pair: Pair, options: dict) -> None:
    inputs = pair.inputs()
    pair.check(pair.generate(pair.remote, inputs, **options), pair.generate(pair.local, inputs, **options))


@contextlib.contextmanager
def default(value: torch.dtype | str) -> Iterator[None]:
    """Sets torch's default dtype or device."""
    before = torch.get_default_dtype()
    if isinstance(value, str):
        torch.set_default_device(value)
    else:
        torch.set_default_dtype(value)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
        torch.set_default_device(DEVICE)


@pytest.mark.parametrize("value", [torch.bfloat16, torch.float64, "meta"], ids=str)
def test_layers_do_not_follow_the_defaults_of_torch(next_pair: Pair, value: torch.dtype | str) -> None:
    layers = [module for module in next_pair.remote.modules() if isinstance(module, gdn_torch.RemoteGatedDeltaNet)]
    generator = torch.Generator(DEVICE).manual_seed(4)
    features = next_pair.remote.config.hidden_size
    x = torch.randn(2, 9, features, generator=generator, dtype=torch.float32, device=DEVICE)
    with torch.no_grad():
        want = layers[0](x)
        with default(value):
            got = layers[0](x)
    assert (got.dtype, got.device) == (want.dtype, want.device)
    assert torch.equal(got, want)


@pytest.mark.parametrize("value", [torch.bfloat16, torch.float64], ids=str)
def test_attach_does_not_follow_the_default_dtype(models_server: Server, value: torch.dtype) -> None:
    models = [load("qwen3_5_1"), load("qwen3_5_1")]
    inputs = {"input_ids": torch.arange(1, 20, dtype=torch.long, device=DEVICE)[None]}
    logits = []
    for model, dtype in zip(models, (torch.float32, value), strict=True):
        with default(dtype), gdn_torch.attach(model, models_server.target, remote_model="qwen3_5_1"):
            default_is_for_attach_alone = torch.get_default_dtype()
            torch.set_default_dtype(torch.float32)
            with torch.no_grad():
                logits.append(model(**inputs).logits)
            torch.set_default_dtype(default_is_for_attach_alone)
    assert torch.equal(*logits)


@pytest.mark.parametrize("name", LATER)
def test_families_of_later_releases_are_the_same(models_server: Server, name: str) -> None:
    if not hasattr(transformers, LATER[name]):
        pytest.skip(f"transformers {transformers.__version__} has no {LATER[name]}")
    one = Pair(name, models_server.target)
    with one.attachment as attachment:
        assert attachment.layers == [0, 1]
        inputs = one.inputs()
        test_logits_are_those_of_the_local_model(one)
        one.check(one.generate(one.remote, inputs), one.generate(one.local, inputs))


def test_kda_layers_come_back(models_server: Server) -> None:
    if not hasattr(transformers, LATER["kimi_linear_1"]):
        pytest.skip(f"transformers {transformers.__version__} has no kimi_linear")
    model = load("kimi_linear_1")
    own = [layer.self_attn for layer in model.model.layers]
    attachment = gdn_torch.attach(model, models_server.target, remote_model="kimi_linear_1", keep_local=True)
    assert [layer.self_attn is mine for layer, mine in zip(model.model.layers, own, strict=True)] == [0, 0, 1]
    attachment.detach()
    assert all(layer.self_attn is mine for layer, mine in zip(model.model.layers, own, strict=True))
    other = load("qwen3_next_1")
    with pytest.raises(ValueError, match="decays by channel"):
        gdn_torch.attach(other, models_server.target, remote_model="kimi_linear_1", layers=[0, 1])


def test_samples_are_the_same(pair: Pair) -> None:
    options = {"do_sample": True, "num_return_sequences": 2, "max_new_tokens": 16}
    got, want = (pair.generate(model, pair.inputs(), **options) for model in (pair.remote, pair.local))
    assert torch.equal(got, want)


@pytest.mark.parametrize("options", [{"num_beams": 2}, {"num_beams": 3, "num_return_sequences": 2}])
def test_beams_are_the_same(pair: Pair, options: dict) -> None:
    asked = {"return_dict_in_generate": True, "output_scores": True, **options}
    got, want = (pair.generate(model, pair.inputs(), **asked) for model in (pair.remote, pair.local))
    torch.testing.assert_close(got.sequences_scores, want.sequences_scores, rtol=TIE, atol=TIE)
    same = (got.sequences == want.sequences).all(dim=1)
    assert same.float().mean() > 0.5, "ties are rare"


def test_assisted_generation_is_greedy_search(pair: Pair) -> None:
    inputs, assistant = pair.one(), load(pair.name)
    generator = torch.Generator(DEVICE).manual_seed(3)
    with torch.no_grad():  # one that is right now and then
        for parameter in assistant.model.layers[-1].parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
    want = pair.generate(pair.local, inputs)
    # Without a pad_token_id: since 5.20 at the latest transformers makes the assistant's mask of it, and these models
    # choose a 0 at times.
    with gdn_torch.attach(assistant, pair.target, remote_model=pair.name):
        pair.check(pair.generate(pair.remote, inputs, assistant_model=assistant, pad_token_id=None), want)
    # A draft that fits, and one that does not: some are taken back by a fork.
    for tokens in (3, 40):
        pair.check(pair.generate(pair.remote, inputs, prompt_lookup_num_tokens=tokens), want)


def test_a_streamer_gets_the_tokens(next_pair: Pair) -> None:
    class Collect(transformers.generation.streamers.BaseStreamer):
        def __init__(self) -> None:
            self.tokens: list[int] = []

        def put(self, value: torch.Tensor) -> None:
            self.tokens += value.flatten().tolist()

        def end(self) -> None:
            pass

    streamer = Collect()
    whole = next_pair.generate(next_pair.remote, next_pair.one(), streamer=streamer)
    assert streamer.tokens == whole.flatten().tolist()


def test_a_chat_goes_on_from_its_cache(next_pair: Pair) -> None:
    answers = []
    for model in (next_pair.local, next_pair.remote):
        cache = transformers.DynamicCache(config=model.config)
        ids = next_pair.one()["input_ids"]
        for turn in range(3):
            ids = torch.cat([ids, torch.arange(1, 4 + turn)[None]], dim=1)
            ids = next_pair.generate(model, {"input_ids": ids}, **kept(cache), max_new_tokens=9)
        answers.append(ids)
    assert torch.equal(*answers)


def test_copies_of_a_cache_go_on_by_themselves(next_pair: Pair) -> None:
    prompt, more = next_pair.one()["input_ids"], torch.arange(1, 9)[None]
    outputs = []
    for model in (next_pair.local, next_pair.remote):
        cache = transformers.DynamicCache(config=model.config)
        with torch.no_grad():
            model(prompt, **kept(cache))
            twin = copy.deepcopy(cache)
            first = model(more, **kept(twin)).logits
            outputs.append((first, model(more.flip(1), **kept(cache)).logits))
    for local, remote in zip(*outputs, strict=True):
        torch.testing.assert_close(remote, local, rtol=1e-4, atol=1e-4)


def test_rows_of_a_cache_can_be_chosen(next_pair: Pair) -> None:
    inputs = {name: tensor[:, -min(LENGTHS) :] for name, tensor in next_pair.inputs().items()}
    rows = torch.tensor([2, 0])
    outputs = []
    for model in (next_pair.local, next_pair.remote):
        cache = transformers.DynamicCache(config=model.config)
        with torch.no_grad():
            model(**inputs, **kept(cache))
            if model is next_pair.remote:
                cache.batch_repeat_interleave(2)
                cache.batch_select_indices(2 * rows + 1)
                outputs.append(model(torch.full((2, 3), 5), **kept(cache)).logits)
            else:  # whose own layers cannot
                alone = {name: tensor[rows] for name, tensor in inputs.items()}
                cache = transformers.DynamicCache(config=model.config)
                model(**alone, **kept(cache))
                outputs.append(model(torch.full((2, 3), 5), **kept(cache)).logits)
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-4)


def test_equal_prompts_are_computed_once(next_pair: Pair) -> None:
    assert ends_with(next_pair, 0)
    cache = transformers.DynamicCache(config=next_pair.remote.config)
    prompt = next_pair.one()["input_ids"].repeat(4, 1)
    with torch.no_grad():
        next_pair.remote(prompt, **kept(cache))
        assert next_pair.sessions() == 1
        next_pair.remote(torch.tensor([[1], [2], [1], [3]]), **kept(cache))
    assert next_pair.sessions() == 3
    sequences = cache.layers[0].sequences
    assert len(set(sequences.session_names)) == 3
    assert sequences.token_count(0) == max(LENGTHS) + 1


def test_sessions_end_with_their_cache(models_server: Server) -> None:
    pair = Pair("qwen3_next_1", models_server.target)
    with pair.attachment:
        assert ends_with(pair, 0)
        cache = transformers.DynamicCache(config=pair.remote.config)
        with torch.no_grad():
            pair.remote(**pair.inputs(), **kept(cache))
        assert pair.sessions() == len(LENGTHS)
        del cache
        assert ends_with(pair, 0)
        cache = transformers.DynamicCache(config=pair.remote.config)
        with torch.no_grad():
            layer = pair.remote.model.layers[0].linear_attn
            layer(torch.ones(1, 9, pair.remote.config.hidden_size), cache)
            cache.layers[0].reset()
            layer(torch.randn(len(LENGTHS), 9, pair.remote.config.hidden_size), cache)
        assert ends_with(pair, len(LENGTHS))
    with gdn_client.Client(models_server.target) as client:
        assert not list(client.sessions()), "closing ends those of a cache that is there, too"
    with pytest.raises(RuntimeError, match="closed"):
        layer(torch.ones(1, 9, pair.remote.config.hidden_size))


def test_layers_may_be_on_several_servers(next_pair: Pair, tmp_path: Path) -> None:
    model = load("qwen3_next_5")
    with (
        running(tmp_path, "--model", f"other={GOLDEN / 'qwen3_next_5'}") as second,
        gdn_torch.attach(model, next_pair.target, [0, 2], remote_model="qwen3_next_5") as one,
        gdn_torch.attach(model, second.target) as other,
    ):
        assert (one.layers, other.layers) == ([0, 2], [1])
        want = next_pair.generate(next_pair.local, next_pair.inputs())
        next_pair.check(next_pair.generate(model, next_pair.inputs()), want)


def test_some_layers_may_stay_local(next_pair: Pair) -> None:
    model = load("qwen3_next_5")
    with gdn_torch.attach(model, next_pair.target, [1], remote_model="qwen3_next_5"):
        want = next_pair.generate(next_pair.local, next_pair.inputs())
        next_pair.check(next_pair.generate(model, next_pair.inputs()), want)
        with pytest.raises(ValueError, match="stateful"):  # transformers' words: the local layers take nothing back
            next_pair.generate(model, next_pair.one(), prompt_lookup_num_tokens=3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_dtypes(next_pair: Pair, dtype: str) -> None:
    models = [load("qwen3_next_1").to(getattr(torch, dtype)) for _ in range(2)]
    with pytest.raises(ValueError, match=r"F32 matrices .* allow_uncompared=True"):
        gdn_torch.attach(models[1], next_pair.target, remote_model="qwen3_next_1")
    with pytest.warns(UserWarning, match=r"layers \[0, 1, 2\]: .* F32 matrices"):
        attachment = gdn_torch.attach(models[1], next_pair.target, remote_model="qwen3_next_1", allow_uncompared=True)
    with attachment, torch.no_grad():
        local, remote = (model(**next_pair.one()).logits.float() for model in models)
    assert float((local - remote).norm() / local.norm()) < 0.05
    assert remote.dtype == torch.float32


def test_local_layers_can_come_back(next_pair: Pair) -> None:
    model = load("qwen3_next_5")
    weights = [module for module in model.modules() if type(module).__name__ == "Qwen3NextGatedDeltaNet"]
    attachment = gdn_torch.attach(model, next_pair.target, remote_model="qwen3_next_5", keep_local=True)
    assert attachment.freed_bytes == 0
    assert not any(module in weights for module in model.modules())
    attachment.detach()
    assert [module for module in model.modules() if module in weights] == weights
    assert model._is_stateful
    assert next_pair.attachment.freed_bytes > 0
    with pytest.raises(RuntimeError, match="keep_local"):
        next_pair.attachment.detach()


def without_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a server of version 0.1.0."""
    model_of = gdn_client.Client.model

    def model(self: gdn_client.Client, *of: object, **how: object) -> object:
        one = model_of(self, *of, **how)
        one.ClearField("layer_digests")
        return one

    monkeypatch.setattr(gdn_client.Client, "model", model)


def test_weights_that_differ_by_a_bit_are_found(next_pair: Pair) -> None:
    model = load("qwen3_next_5")
    with torch.no_grad():
        weight = model.model.layers[1].linear_attn.out_proj.weight
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    with pytest.raises(ValueError, match=r"layers \[1\] .* other weights .* verify=False"):
        gdn_torch.attach(model, next_pair.target, remote_model="qwen3_next_5", allow_uncompared=True)
    assert not any(isinstance(module, gdn_torch.RemoteGatedDeltaNet) for module in model.modules())
    with gdn_torch.attach(model, next_pair.target, [0, 2], remote_model="qwen3_next_5"):
        pass  # the layers that are attached count


def test_without_xxhash_attach_warns(next_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.warns(UserWarning, match="not compared .*pip install"):
        gdn_torch.attach(load("qwen3_next_5"), next_pair.target, remote_model="qwen3_next_5").close()


def test_other_weights_are_found(next_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("qwen3_next_5")
    with torch.no_grad():
        model.model.layers[1].linear_attn.out_proj.weight.mul_(-1)
    with monkeypatch.context() as old:
        without_digests(old)
        with pytest.raises(ValueError, match=r"layer 1 .* other weights"):
            gdn_torch.attach(model, next_pair.target, remote_model="qwen3_next_5")
    assert not any(isinstance(module, gdn_torch.RemoteGatedDeltaNet) for module in model.modules())
    gdn_torch.attach(model, next_pair.target, remote_model="qwen3_next_5", verify=False).close()
    with pytest.raises(ValueError, match="hidden size"):
        gdn_torch.attach(load("qwen3_next_5"), next_pair.target, remote_model="qwen3_next_1")
    with pytest.raises(ValueError, match=r"\[3\] are no local"):
        gdn_torch.attach(load("qwen3_next_5"), next_pair.target, [0, 3], remote_model="qwen3_next_5")
    with pytest.raises(ValueError, match="say which"):
        gdn_torch.attach(load("qwen3_next_5"), next_pair.target)


def test_what_cannot_be_is_refused(next_pair: Pair) -> None:
    model, inputs = next_pair.remote, next_pair.inputs()
    with torch.no_grad():
        right = inputs["attention_mask"].flip(1)
        torch.testing.assert_close(
            model(inputs["input_ids"], attention_mask=right, use_cache=False).logits[right.bool()],
            next_pair.local(inputs["input_ids"], attention_mask=right, use_cache=False).logits[right.bool()],
            **{"rtol": 1e-4, "atol": 1e-4},
        )
        with pytest.raises(ValueError, match="padding_side"):
            model(inputs["input_ids"], attention_mask=right)
        holes = torch.ones_like(right)
        holes[1, 3] = 0
        with pytest.raises(ValueError, match=r"row 1 .* between"):
            model(inputs["input_ids"], attention_mask=holes)
        cache = transformers.DynamicCache(config=model.config)
        model(**inputs, **kept(cache))
        with pytest.raises(RuntimeError, match="activate_past_recording"):
            cache.crop(-1)
        with pytest.raises(ValueError, match="of one batch"):
            model.model.layers[0].linear_attn(torch.zeros(2, 1, model.config.hidden_size), cache)
        with pytest.raises(RuntimeError, match="states are at"):
            next_pair.local(torch.ones(3, 1, dtype=torch.long), **kept(cache))
        used = transformers.DynamicCache(config=model.config)
        next_pair.local(**inputs, **kept(used))
        with pytest.raises(ValueError, match="used locally"):
            model(torch.ones(3, 1, dtype=torch.long), **kept(used))
    loss = model(**next_pair.one()).logits.sum()
    with pytest.raises(RuntimeError, match="no gradients"):
        loss.backward()


def changed(model: torch.nn.Module, change: Callable[[str, object], tuple[str, object] | None]) -> torch.nn.Module:
    """Whose layers are called otherwise, as by a release of transformers that is still to come."""

    def calls(_: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        return args, dict(one for name, value in kwargs.items() if (one := change(name, value)) is not None)

    for layer in model.model.layers:
        if hasattr(layer, "linear_attn"):
            layer.linear_attn.register_forward_pre_hook(calls, with_kwargs=True)
    return model


def is_cache(value: object) -> bool:
    return isinstance(value, transformers.Cache)


def test_a_cache_is_found_whatever_its_name(next_pair: Pair) -> None:
    changed(next_pair.remote, lambda name, value: ("memory" if is_cache(value) else name, value))
    want = next_pair.generate(next_pair.local, next_pair.inputs())
    next_pair.check(next_pair.generate(next_pair.remote, next_pair.inputs()), want)
    cache = transformers.DynamicCache(config=next_pair.remote.config)
    with pytest.raises(ValueError, match="one cache"):
        next_pair.remote.model.layers[0].linear_attn(torch.zeros(1, 1, 1), cache, other=copy.deepcopy(cache))


def test_a_layer_without_the_cache_that_is_kept_says_so(next_pair: Pair) -> None:
    changed(next_pair.remote, lambda name, value: None if is_cache(value) else (name, value))
    with pytest.raises(RuntimeError, match=r"gets none.*Tested with transformers 5\.17"):
        next_pair.generate(next_pair.remote, next_pair.inputs())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda name, value: None if is_cache(value) else (name, value), "0 caches"),
        (lambda name, value: (name, [value] if is_cache(value) else value), "0 caches"),
        (lambda name, value: ("padding" if name == "attention_mask" else name, value), "no attention_mask"),
    ],
    ids=["no cache", "a cache in a list", "another name of the mask"],
)
def test_a_model_that_calls_its_layers_otherwise_is_refused(next_pair: Pair, change: Callable, why: str) -> None:
    model = changed(load("qwen3_next_5"), change)
    for verify in (True, False):
        with pytest.raises(RuntimeError, match=rf"{why}.*Tested with transformers 5\.17"):
            gdn_torch.attach(model, next_pair.target, remote_model="qwen3_next_5", verify=verify)
    assert not any(isinstance(module, gdn_torch.RemoteGatedDeltaNet) for module in model.modules())


def test_a_layer_that_takes_more_is_refused(next_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("qwen3_next_5")

    def forward(self, hidden_states, cache=None, attention_mask=None, segments=None, **kwargs):
        raise AssertionError

    monkeypatch.setattr(type(model.model.layers[0].linear_attn), "forward", forward)
    with pytest.raises(RuntimeError, match=r"takes \['segments'\].*Tested with"):
        gdn_torch.attach(model, next_pair.target, remote_model="qwen3_next_5")


@pytest.mark.parametrize(
    "method",
    ["reorder_cache", "batch_select_indices", "batch_repeat_interleave", "crop", "reset", "has_previous_state"],
)
def test_a_cache_that_passes_remote_layers_over_is_refused(
    next_pair: Pair, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    model = load("qwen3_next_5")
    monkeypatch.setattr(transformers.Cache, method, lambda *_, **__: None)
    with pytest.raises(RuntimeError, match=rf"do not reach .*{method}.*Tested with"):
        gdn_torch.attach(model, next_pair.target, remote_model="qwen3_next_5", verify=False)


def test_a_cache_that_is_not_kept_is_refused(next_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    model, module = load("qwen3_next_5"), sys.modules["gdn_client.torch.remote_layer"]
    remote_layer_of = module.remote_layer_of
    monkeypatch.setattr(
        *(module, "remote_layer_of"),
        lambda _, *of: remote_layer_of(transformers.DynamicCache(config=model.config), *of),
    )
    with pytest.raises(RuntimeError, match=r"layer 0 does not go on from the first .*Tested with"):
        gdn_torch.attach(model, next_pair.target, remote_model="qwen3_next_5")


def test_attaching_leaves_no_sessions(next_pair: Pair) -> None:
    assert ends_with(next_pair, 0)
    with gdn_torch.attach(load("qwen3_next_5").train(), next_pair.target, remote_model="qwen3_next_5"):
        pass
    assert next_pair.sessions() == 0
    with gdn_torch.attach(load("qwen3_next_5"), next_pair.target, [], remote_model="qwen3_next_5") as none:
        assert none.layers == []


class Crash(transformers.StoppingCriteria):
    """Kills the server at some steps of a generate(), which goes on."""

    def __init__(self, server: Server, *steps: int) -> None:
        self.server, self.left, self.steps = server, list(steps), 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_) -> torch.Tensor:
        self.steps += 1
        if self.steps in self.left:
            self.left.remove(self.steps)
            self.server.kill()
            self.server.start()
        return torch.zeros(len(input_ids), dtype=torch.bool)


def test_a_crash_of_the_server_is_not_seen(next_pair: Pair, tmp_path: Path) -> None:
    model = load("qwen3_next_5")
    with (
        running(tmp_path, "--model", f"other={GOLDEN / 'qwen3_next_5'}") as server,
        gdn_torch.attach(model, server.target),
    ):
        want = next_pair.generate(next_pair.local, next_pair.inputs())
        got = next_pair.generate(model, next_pair.inputs(), stopping_criteria=[Crash(server, 5)])
        next_pair.check(got, want)


@pytest.mark.parametrize("keep_bytes", [256 << 20, 6000], ids=["all inputs are kept", "beams are checkpointed"])
@pytest.mark.parametrize("durable", ["--checkpoint-every-tokens=4", "--checkpoint-every-tokens=0"])
def test_beams_do_not_see_a_crash_either(next_pair: Pair, tmp_path: Path, durable: str, keep_bytes: int) -> None:
    model = load("qwen3_next_5")
    flags = ["--model", f"other={GOLDEN / 'qwen3_next_5'}", "--disk-dir", str(tmp_path / "states"), durable]
    with running(tmp_path, *flags) as server, gdn_torch.attach(model, server.target, keep_bytes=keep_bytes):
        options = {"num_beams": 3, "max_new_tokens": 14, "eos_token_id": None}
        for seed in range(3):
            inputs = {name: tensor[seed : seed + 1, -7:] for name, tensor in next_pair.inputs().items()}
            want = next_pair.generate(model, inputs, **options)
            crash = Crash(server, 2 + seed, 6 + 2 * seed)
            got = next_pair.generate(model, inputs, stopping_criteria=[crash], **options)
            assert not crash.left
            assert torch.equal(got, want)


@pytest.mark.parametrize("name", ["seq_idx", "cu_seq_lens_q", "cu_seqlens", "initial_state", "scale"])
def test_what_a_local_layer_may_use_and_a_remote_one_does_not_is_refused(next_pair: Pair, name: str) -> None:
    given = {"scale": 0.5}.get(name, torch.zeros(1, 21, dtype=torch.int32))
    with torch.no_grad(), pytest.raises(ValueError, match=name):
        next_pair.remote(next_pair.one()["input_ids"], use_cache=False, **{name: given})


@pytest.mark.parametrize("mask", ["numbers of samples", "weights", "added"])
def test_a_mask_that_is_no_padding_mask_is_refused(next_pair: Pair, mask: str) -> None:
    layer = next_pair.remote.model.layers[0].linear_attn
    x = torch.zeros(1, 4, next_pair.remote.config.hidden_size)
    values = {"numbers of samples": [1, 1, 2, 2], "weights": [0.5, 1, 1, 1], "added": [-1e9, 0, 0, 0]}[mask]
    with pytest.raises(ValueError, match="other values than 0 at padding and 1 at tokens"):
        layer(x, attention_mask=torch.tensor([values]))


def test_the_chat_example_answers_as_the_local_model(models_server: Server, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    checkpoint = tmp_path / "checkpoint"
    model = load("qwen3_next_5")
    model.save_pretrained(checkpoint)
    letters = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({chr(code): code for code in range(model.config.vocab_size)}, unk_token="?")
    )
    letters.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    letters.decoder = tokenizers.decoders.Fuse()
    transformers.PreTrainedTokenizerFast(tokenizer_object=letters, pad_token="\0").save_pretrained(checkpoint)
    example = REPOSITORY / "examples" / "hugging_face" / "remote_chat.py"
    ended = subprocess.run(
        [
            *(sys.executable, str(example), "--model", str(checkpoint), "--remote-model", "qwen3_next_5"),
            *("--target", f"{models_server.target}=0-1", "--target", models_server.target, "--max-new-tokens", "12"),
        ],
        input="hello\nand more\n/new\nhello\n\n",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)

    def answer(text: str) -> str:
        ids = tokenizer(text, return_tensors="pt").input_ids.to(DEVICE)
        with torch.no_grad():
            return tokenizer.decode(
                model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)[0, ids.shape[1] :],
                skip_special_tokens=True,
            )

    first = answer("hello\n")
    second = answer(f"hello\n{first}\nand more\n")
    assert ended.stdout == f"{first}\n{second}\n{first}\n"
