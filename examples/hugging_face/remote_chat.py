#!/usr/bin/env python3
"""A chat with a model whose Gated DeltaNet layers run on a server.

    gdn_server --model qwen=DIR --listen 0.0.0.0:50061        on the machine with the GPU
    remote_chat.py --model DIR --target gpu-box:50061         here

Answers are printed as they arrive. The conversation's states stay on the server between turns, so each turn sends only
the new tokens. `/new` starts another conversation. An empty line or the end of the input ends the program.
Needs `pip install './client/python[torch]'`.
"""

from __future__ import annotations

import argparse
import inspect
import sys

import torch
import transformers

import gdn_client.torch


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder or name of the checkpoint, with its tokenizer")
    parser.add_argument(
        "--target",
        action="append",
        required=True,
        metavar="HOST:PORT[=FIRST-LAST]",
        help="a server, and the layers to take from it; repeat for several",
    )
    parser.add_argument("--remote-model", help="the served model's name, where a server has several")
    parser.add_argument(
        "--allow-uncompared", action="store_true", help="accept weights in another format than the server's"
    )
    parser.add_argument("--tls-ca", help="PEM file of who signed the servers' certificates")
    parser.add_argument("--token-file", help="file with the bearer token")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--sample", action="store_true", help="sample, instead of the likeliest token")
    return parser.parse_args()


def attach_all(model: torch.nn.Module, options: argparse.Namespace) -> list[gdn_client.torch.Attachment]:
    """Attaches each server's layers: those that are named, or all that are left."""
    kinds = model.config.get_text_config().layer_types
    attachments = []
    for given in options.target:
        target, _, span = given.partition("=")
        layers = None
        if span:
            first, last = (int(end) for end in span.split("-"))
            layers = [layer for layer in range(first, last + 1) if kinds[layer] == "linear_attention"]
        attachments.append(
            gdn_client.torch.attach(
                model,
                target,
                layers,
                remote_model=options.remote_model,
                allow_uncompared=options.allow_uncompared,
                tls_ca=options.tls_ca,
                token_file=options.token_file,
            )
        )
        print(attachments[-1], file=sys.stderr)
    return attachments


def prompt_of(tokenizer: transformers.PreTrainedTokenizerBase, messages: list[dict[str, str]]) -> torch.Tensor:
    """Returns the prompt's ids, `[1, T]`. A checkpoint without a chat template gets only the text."""
    if tokenizer.chat_template is None:
        return tokenizer("".join(message["content"] + "\n" for message in messages), return_tensors="pt").input_ids
    return tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).input_ids


def goes_on(prompt: torch.Tensor, seen: torch.Tensor) -> bool:
    """Whether the prompt begins with the tokens that the cache has seen.

    It does not if a template drops earlier reasoning.
    """
    return prompt.shape[1] > seen.shape[1] and torch.equal(prompt[:, : seen.shape[1]], seen)


def main() -> None:
    options = arguments()
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype="auto").eval()
    streamer = transformers.TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    attachments = attach_all(model, options)

    # transformers up to 5.23 call it past_key_values.
    cache_name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    messages: list[dict[str, str]] = []
    cache, seen = None, torch.zeros(1, 0, dtype=torch.long)
    while line := (input("> ") if sys.stdin.isatty() else sys.stdin.readline()).strip():
        if line == "/new":
            messages, cache = [], None
            continue
        messages.append({"role": "user", "content": line})
        prompt = prompt_of(tokenizer, messages)
        if cache is None or not goes_on(prompt, seen):
            cache = transformers.DynamicCache(config=model.config)
        whole = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            **{cache_name: cache},
            max_new_tokens=options.max_new_tokens,
            do_sample=options.sample,
            streamer=streamer,
        )
        seen = whole[:, :-1]  # the newest token was chosen, but the layers have not seen it yet
        answer = tokenizer.decode(whole[0, prompt.shape[1] :], skip_special_tokens=True)
        messages.append({"role": "assistant", "content": answer})
    del cache
    for attachment in attachments:
        attachment.close()


if __name__ == "__main__":
    main()
