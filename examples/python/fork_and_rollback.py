#!/usr/bin/env python3
"""Forks, drafts and checkpoints of a session. Needs first_session.py beside it, and the same packages.

The program prefills a session and forks it, and the children take different tokens. Then it decodes a draft of four
tokens and accepts two. The state is then that of a session that never saw the other two. If the server has --disk-dir,
a session goes back to a checkpoint and takes the same tokens again. The program compares every answer bit by bit.
Exit code: 0 if all are equal, 1 otherwise.
"""

import sys

import grpc
import numpy as np

from first_session import run, to_array

KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 2, 4, 32, 16
PROMPT_TOKENS, DRAFT_TOKENS, ACCEPTED_TOKENS = 50, 4, 2


class Tokens:
    """Random inputs of the bare delta rule, which can be cut by token."""

    def __init__(self, count, random):
        q, k = random.standard_normal((2, count, KEY_HEADS, KEY_DIM)).astype(np.float32)
        v = random.standard_normal((count, VALUE_HEADS, VALUE_DIM)).astype(np.float32)
        g = -random.uniform(0.001, 0.5, (count, VALUE_HEADS)).astype(np.float32)
        beta = random.uniform(0, 1, (count, VALUE_HEADS)).astype(np.float32)
        self._tensors = tuple(x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k)) + (v, g, beta)

    def prefill(self, service, first, last):
        return service.delta_rule(*[x[first:last] for x in self._tensors])

    def decode(self, service, first, last):
        return service.delta_rule(*[x[None, first:last] for x in self._tensors])  # [B = 1, T, ...]


def decode(service, session, tokens, first, last, draft=False):
    """Decodes the tokens [first, last) in one step of the session, and returns their outputs."""
    reply = service.Decode(sessions=[session], layer=0, delta_rule=tokens.decode(service, first, last), draft=draft)
    return to_array(reply.output)[0]


def accept(service, session, count):
    reply = service.AcceptTokens(acceptances=[service.message("DraftAcceptance", session=session, accepted_tokens=count)])
    return reply.counts[0].layers[0].token_count


def forks(service, parent, tokens, other, checks):
    print("\nforks")
    children = [child.name for child in service.ForkSession(name=parent, session_ids=["", ""]).sessions]
    try:
        same = decode(service, children[0], tokens, PROMPT_TOKENS, PROMPT_TOKENS + 2)
        different = decode(service, children[1], other, 0, 2)
        of_parent = decode(service, parent, tokens, PROMPT_TOKENS, PROMPT_TOKENS + 2)
        checks.equal("a child that takes the parent's tokens has its outputs", np.array_equal(same, of_parent), True)
        checks.equal("one that takes others has others", np.array_equal(different, of_parent), False)
        drafts(service, children[0], parent, tokens, checks)
    finally:
        for child in children:
            service.DeleteSession(name=child)


def drafts(service, drafting, plain, tokens, checks):
    print("\na draft of %d tokens, of which %d are accepted" % (DRAFT_TOKENS, ACCEPTED_TOKENS))
    first = PROMPT_TOKENS + 2
    drafted = decode(service, drafting, tokens, first, first + DRAFT_TOKENS, draft=True)
    count = accept(service, drafting, ACCEPTED_TOKENS)
    accepted = first + ACCEPTED_TOKENS
    checks.equal("token count", count, accepted)
    taken = decode(service, plain, tokens, first, accepted)
    checks.equal("the accepted outputs are those of a plain decode", np.array_equal(drafted[:ACCEPTED_TOKENS], taken), True)
    after_draft = decode(service, drafting, tokens, accepted + 5, accepted + 6)
    after_plain = decode(service, plain, tokens, accepted + 5, accepted + 6)
    checks.equal("the dropped tokens have left nothing", np.array_equal(after_draft, after_plain), True)


def rollback(service, session, tokens, checks):
    print("\na checkpoint")
    try:
        saved = service.CheckpointSession(name=session, checkpoint_id="here").checkpoint
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.FAILED_PRECONDITION:
            raise
        print("  this server keeps none (it has no --disk-dir); not tried")
        return
    first = decode(service, session, tokens, 0, 3)
    restored = service.RestoreCheckpoint(name=session, checkpoint_id="here").session
    checks.equal("token count after going back", restored.layers[0].token_count, saved.layers[0].token_count)
    checks.equal("the epoch tells clients of it", restored.epoch, saved.epoch + 1)
    again = decode(service, session, tokens, 0, 3)
    checks.equal("the same tokens give the same outputs again", np.array_equal(first, again), True)


def fork_and_rollback(service, checks):
    random = np.random.default_rng(11)
    tokens, other = Tokens(PROMPT_TOKENS + 20, random), Tokens(2, random)
    spec = service.message(
        "OperatorSpec", key_heads=KEY_HEADS, value_heads=VALUE_HEADS, key_dim=KEY_DIM, value_dim=VALUE_DIM
    )
    session = service.CreateSession(operator=spec).session.name
    try:
        service.Prefill(session=session, layer=0, delta_rule=tokens.prefill(service, 0, PROMPT_TOKENS))
        forks(service, session, tokens, other, checks)
        rollback(service, session, tokens, checks)
    finally:
        service.DeleteSession(name=session)


if __name__ == "__main__":
    sys.exit(run("fork and rollback", __doc__, fork_and_rollback))
