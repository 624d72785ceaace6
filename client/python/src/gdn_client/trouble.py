"""Why a server could not be reached, in words for the person who called.

Thread safety: a pure function.
"""

from __future__ import annotations

# Signs in gRPC's messages, and words for each. An earlier sign may occur together with a later one.
_TROUBLES = (
    (
        ("wrong version number", "WRONG_VERSION_NUMBER"),
        "it does not speak TLS, and this client does: leave out tls_ca, tls_cert and tls_key, or start the server with "
        "--tls-cert and --tls-key",
    ),
    (
        ("certificate verify failed", "CERTIFICATE_VERIFY_FAILED"),
        "its certificate is not trusted: pass the file of the CA that has issued it as tls_ca, or the certificate "
        "itself if nobody else has",
    ),
    (
        ("is not in peer certificate", "Hostname Verification Check failed"),
        "its certificate is for another name: call the server by a name that its certificate has",
    ),
    (
        ("Ssl handshake failed", "TLS handshake"),
        "the TLS handshake failed: see whether tls_cert and tls_key fit the server's CA",
    ),
    (
        ("Socket closed", "Connection reset by peer", "connection attempt timed out before receiving SETTINGS"),
        "it accepts connections and closes them at once: if the server speaks TLS, pass tls_ca; if it asks for client "
        "certificates, also tls_cert and tls_key",
    ),
    (("Connection refused",), "nothing listens there: start a server, or correct the target"),
    (("No such file or directory",), "there is no such socket: start a server, or correct the target"),
    (("Permission denied",), "this user may not open the socket, which belongs to the user that runs the server"),
    (("DNS resolution failed", "Name or service not known"), "no address is known for this name: correct the target"),
    (("No route to host", "Network is unreachable"), "no network leads there: see the target, routes and firewalls"),
)


def connection_trouble(message: str) -> str:
    """Returns what is wrong and what to do, given gRPC's message of an UNAVAILABLE call."""
    for signs, words in _TROUBLES:
        if any(sign in message for sign in signs):
            return words
    return f"{message}; expected a server that listens there: start it, or correct the target or the TLS options"
