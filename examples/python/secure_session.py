#!/usr/bin/env python3
"""A session over TLS with a token, and the errors for wrong credentials.

    secure_session.py --target HOST:PORT --tls-ca ca.crt --tls-cert alice.crt --tls-key alice.key --token-file alice.token

Needs first_session.py and fork_and_rollback.py beside it, and the same packages. docs/how-to/secure.md shows how to
make the files and start such a server. One connection prefills the session and another decodes it, because a session
belongs to the token's subject and not to a connection.
Exit code: 0 if every answer is as expected, 1 otherwise.
"""

import sys
import tempfile

import grpc
import numpy as np

from first_session import Service, connect, parse_arguments, run, to_array
from fork_and_rollback import KEY_DIM, KEY_HEADS, PROMPT_TOKENS, VALUE_DIM, VALUE_HEADS, Tokens, decode


def outcome(call):
    """Returns "OK" and no text, or the code and the message of the error."""
    try:
        call()
        return "OK", ""
    except grpc.RpcError as error:
        return error.code().name, error.details()
    except grpc.FutureTimeoutError:
        return "UNAVAILABLE", "no connection"


def good_login(service, arguments, checks):
    tokens = Tokens(PROMPT_TOKENS + 2, np.random.default_rng(5))
    spec = service.message("OperatorSpec", key_heads=KEY_HEADS, value_heads=VALUE_HEADS, key_dim=KEY_DIM, value_dim=VALUE_DIM)
    session = service.CreateSession(operator=spec).session.name
    print("\nwith the right certificate and token: %s" % session)
    try:
        service.Prefill(session=session, layer=0, delta_rule=tokens.prefill(service, 0, PROMPT_TOKENS))
        with connect(arguments) as channel:
            other = Service(channel)
            output = decode(other, session, tokens, PROMPT_TOKENS, PROMPT_TOKENS + 1)
        checks.equal("another connection goes on with the session", output.shape, (1, VALUE_HEADS, VALUE_DIM))
        whole = service.CreateSession(operator=spec).session.name
        prefilled = service.Prefill(session=whole, layer=0, delta_rule=tokens.prefill(service, 0, PROMPT_TOKENS + 1))
        service.DeleteSession(name=whole)
        checks.close("and has what one prefill of all has", output[0], to_array(prefilled.output)[-1])
    finally:
        service.DeleteSession(name=session)


def wrong_token(arguments, checks):
    print("\nwith a token that the server does not know")
    with tempfile.NamedTemporaryFile("w", suffix=".token") as file:
        file.write("not-a-token\n")
        file.flush()
        with connect(arguments, token_file=file.name) as channel:
            # Reflection needs no login, so the message types are known.
            code, words = outcome(lambda: Service(channel).ListSessions())
    checks.equal("ListSessions", code, "UNAUTHENTICATED")
    print("  %s" % words)


def no_certificate(arguments, checks):
    print("\nwithout a certificate")

    def call():
        with connect(arguments, certificate=False) as channel:
            grpc.channel_ready_future(channel).result(timeout=5)

    checks.equal("connecting", outcome(call)[0], "UNAVAILABLE")


def main():
    arguments = parse_arguments(__doc__)

    def secure_session(service, checks):
        good_login(service, arguments, checks)
        if arguments.token_file is not None:
            wrong_token(arguments, checks)
        if arguments.tls_cert is not None:
            no_certificate(arguments, checks)

    return run("secure session", __doc__, secure_session, arguments)


if __name__ == "__main__":
    sys.exit(main())
