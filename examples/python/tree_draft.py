#!/usr/bin/env python3
"""A draft that is a tree, as drafters like EAGLE make it. Needs first_session.py beside it, and the same packages.

From a prompt, a drafter with random scores grows a tree. Each level keeps the best few continuations. The program
decodes the tree in one step and accepts a path of it. The session is then in the same state as a session that decoded
only this path. Then the next tree grows. The program compares every answer bit by bit.
Exit code: 0 if all are equal, 1 otherwise.
"""

import sys

import numpy as np

from first_session import run, to_array
from fork_and_rollback import KEY_DIM, KEY_HEADS, PROMPT_TOKENS, VALUE_DIM, VALUE_HEADS, Tokens, decode

LEVELS, BRANCHES, KEPT, ROUNDS = 3, 2, 3, 4


def grow(random, most):
    """Returns the parents of a tree. On each level, the KEPT continuations with the best scores continue."""
    parents, frontier = [], [(0.0, -1)]
    for _ in range(LEVELS):
        grown = [(score + random.exponential(), parent) for score, parent in frontier for _ in range(BRANCHES)]
        frontier = []
        for score, parent in sorted(grown)[:KEPT]:
            if len(parents) < most:
                frontier.append((score, len(parents)))
                parents.append(parent)
    return parents


def path_to(parents, token):
    path = []
    while token >= 0:
        path.insert(0, token)
        token = parents[token]
    return path


def draft(service, session, tokens, first, parents):
    """Decodes the tree's tokens, which start at `first`, and returns their outputs."""
    reply = service.Decode(
        sessions=[session], layer=0, delta_rule=tokens.decode(service, first, first + len(parents)), draft=True,
        draft_parents=parents,
    )
    return to_array(reply.output)[0]


def accept(service, session, path):
    reply = service.AcceptTokens(acceptances=[service.message("DraftAcceptance", session=session, path=path)])
    return reply.counts[0].layers[0].token_count


def tree_draft(service, checks):
    random = np.random.default_rng(9)
    limits = service.GetServerInfo().limits
    tokens = Tokens(PROMPT_TOKENS + ROUNDS * limits.max_draft, random)
    operator = service.message(
        "OperatorSpec", key_heads=KEY_HEADS, value_heads=VALUE_HEADS, key_dim=KEY_DIM, value_dim=VALUE_DIM
    )
    drafting, plain = (service.CreateSession(operator=operator).session.name for _ in range(2))
    try:
        for session in (drafting, plain):
            service.Prefill(session=session, layer=0, delta_rule=tokens.prefill(service, 0, PROMPT_TOKENS))
        first, count = PROMPT_TOKENS, PROMPT_TOKENS
        for _ in range(ROUNDS):
            parents = grow(random, limits.max_draft)
            path = path_to(parents, int(random.integers(len(parents))))
            print("\na tree with the parents %s, of which %s are accepted" % (parents, path))
            drafted = draft(service, drafting, tokens, first, parents)
            count += len(path)
            checks.equal("token count", accept(service, drafting, path), count)
            taken = [decode(service, plain, tokens, first + token, first + token + 1)[0] for token in path]
            checks.equal("outputs are those of plain decodes of the path", np.array_equal(drafted[path], taken), True)
            first += len(parents)
    finally:
        for session in (drafting, plain):
            service.DeleteSession(name=session)


if __name__ == "__main__":
    sys.exit(run("tree draft", __doc__, tree_draft))
