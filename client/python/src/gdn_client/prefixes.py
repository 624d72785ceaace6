"""Prompts cut into segments, so that sessions of prompts that begin alike begin where the known part ends.

    prompt = gdn_client.prompt_prefix(token_ids, 512)
    with client.session(model="qwen", prefix=prompt) as session:
        done = session.prefix_tokens           # tokens that need not be computed
        ...prefill each layer from there to the end of a segment, at `tokens`...
        session.keep_prefix(prompt, tokens)

Thread safety: free functions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from gdn_client import state_calls
from gdn_client.flow import Flow, Retry, Rpc, exact
from gdn_client.inputs import Input
from gdn_client.proto.gdn.v1 import info_pb2, prefix_pb2, session_pb2
from gdn_client.session_flow import tokens_a_call
from gdn_client.session_state import SessionState

__all__ = ["call_tokens", "drop_prefixes", "first_segments", "keep_prefix", "prompt_prefix"]


def prompt_prefix(
    token_ids: Sequence[int], segment_tokens: int, *, context: str | bytes = b""
) -> session_pb2.PromptPrefix:
    """The segments of a prompt, each one prefill of every layer.

    Args:
        token_ids: of the whole prompt. Its last token is in no segment: its outputs are wanted, so it is computed.
        segment_tokens: of each segment; what is left of the prompt is in none. No more than one call takes
            (`Client.call_tokens`), since a prefill that is sent in several calls has other bits.
        context: whatever else of the caller's the layers' inputs follow from, such as weights of its other layers, an
            adapter, or the dtype of what it sends.

    Raises:
        ValueError: `segment_tokens` is below 1.

    """
    if segment_tokens < 1:
        raise ValueError(f"segment_tokens is {segment_tokens}, expected at least 1")
    text = context.encode() if isinstance(context, str) else context
    head = len(text).to_bytes(8, "little") + text
    prefix = session_pb2.PromptPrefix()
    for begin in range(0, len(token_ids) - segment_tokens, segment_tokens):
        ids = b"".join(int(token).to_bytes(8, "little", signed=True) for token in token_ids[begin:][:segment_tokens])
        prefix.segments.add(tokens=segment_tokens, content_sha256=hashlib.sha256(head + ids).digest())
    return prefix


def first_segments(prefix: session_pb2.PromptPrefix, tokens: int) -> session_pb2.PromptPrefix:
    """Those of its segments that end at `tokens` or before."""
    first = session_pb2.PromptPrefix(input_kind=prefix.input_kind)
    end = 0
    for segment in prefix.segments:
        end += segment.tokens
        if end > tokens:
            break
        first.segments.add().CopyFrom(segment)
    return first


def call_tokens(x: Input, limits: info_pb2.Limits) -> int:
    """The most tokens of such an input that one prefill call takes."""
    return tokens_a_call(x, limits.max_message_bytes, limits.max_stored_reply_bytes)


def keep_prefix(state: SessionState, prefix: session_pb2.PromptPrefix, tokens: int | None) -> Flow[bool]:
    """The session's states are kept as those of the prefix, or of its first tokens."""
    kept = prefix if tokens is None else first_segments(prefix, tokens)
    return (yield from state_calls.keep_prefix(state, kept))


def drop_prefixes(retry: Retry) -> Flow[int]:
    """All of the caller's are gone."""
    reply: prefix_pb2.DropPrefixesResponse = yield from exact(
        Rpc("DropPrefixes", prefix_pb2.DropPrefixesRequest()), retry
    )
    return reply.dropped
