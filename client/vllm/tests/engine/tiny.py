"""Small random models in float32, and what transformers generates from them.

tiny.py FAMILY FOLDER saves such a model with a tokenizer, for trying things out.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import safetensors.torch
import tokenizers
import torch
import transformers

VOCABULARY = 256
LAYERS = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
GDN_LAYERS = 3
SMALL_BLOCKS: dict[str, Any] = {"block_size": 32, "enable_prefix_caching": True}
OWN = "transformers"  # subfolder of a model whose tensors have other names there
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": len(LAYERS),
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 2048,
    "layer_types": LAYERS,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": None,
    "pad_token_id": 0,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}


def _config(family: str, common: dict[str, Any]) -> Any:
    if family == "qwen3_next":
        return transformers.Qwen3NextConfig(**common, **EXPERTS, decoder_sparse_step=1, mlp_only_layers=[])
    if family == "qwen3_5":
        return transformers.Qwen3_5TextConfig(**common)
    if family == "qwen3_5_moe":
        return transformers.Qwen3_5MoeTextConfig(**common, **EXPERTS)
    if family == "olmo_hybrid":
        return transformers.OlmoHybridConfig(**common)
    raise ValueError(family)


def make(family: str, folder: Path, scale: float = 0.12, dtype: torch.dtype = torch.float32, **other: Any) -> Path:
    """Saves a random model, and returns its folder. With a small `scale` it repeats itself. `other`: of its config."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(_config(family, {**COMMON, **other}), dtype=dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "conv1d" not in name:
                parameter.normal_(0, 0.4 if "embed" in name or "lm_head" in name else scale)
    model.save_pretrained(folder, safe_serialization=True)
    if family == "olmo_hybrid":
        model.save_pretrained(folder / OWN, safe_serialization=True)
        _name_as_vllm_reads(folder / "model.safetensors")
    return folder


def with_tokenizer(folder: Path) -> Path:
    """Adds a tokenizer to a model: a token for each byte."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    bytewise = tokenizers.Tokenizer(tokenizers.models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    bytewise.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = tokenizers.decoders.ByteLevel()
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    transformers.PreTrainedTokenizerFast(tokenizer_object=bytewise, chat_template=template).save_pretrained(folder)
    return folder


def _name_as_vllm_reads(file: Path) -> None:
    """Renames the norms, which transformers saves under other names."""
    names = {".attention_layer_norm.": ".input_layernorm.", ".feedforward_layer_norm.": ".post_attention_layernorm."}
    renamed = {}
    for name, tensor in safetensors.torch.load_file(file).items():
        for own, read in names.items():
            name = name.replace(own, read)  # noqa: PLW2901
        renamed[name] = tensor
    safetensors.torch.save_file(renamed, file, {"format": "pt"})


def recording_of(name: str) -> dict[str, str]:
    """Options that record the run, if GDN_RECORDINGS names a folder for recordings."""
    folder = os.environ.get("GDN_RECORDINGS")
    if not folder:
        return {}
    Path(folder, f"{name}.jsonl").unlink(missing_ok=True)
    return {"record": str(Path(folder, f"{name}.jsonl"))}


def prompts(lengths: list[int], seed: int = 1) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def greedy(folder: Path, given: list[list[int]], tokens: int) -> list[list[int]]:
    source = folder / OWN if (folder / OWN).exists() else folder
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    answers = []
    for prompt in given:
        ids = torch.tensor([prompt])
        with torch.no_grad():
            whole = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False
            )
        answers.append(whole[0, len(prompt) :].tolist())
    return answers


if __name__ == "__main__":
    with_tokenizer(make(sys.argv[1], Path(sys.argv[2])))
