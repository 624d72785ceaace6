"""Errors of a server that cannot be reached say why, and what to do."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from server import Server

import gdn_client
from gdn_client.trouble import connection_trouble


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("Ssl handshake failed: SSL_ERROR_SSL: error:100000f7: WRONG_VERSION_NUMBER", "does not speak TLS"),
        ("Ssl handshake failed: error:1000007d: CERTIFICATE_VERIFY_FAILED", "certificate is not trusted"),
        ("Peer name a is not in peer certificate", "for another name"),
        ("ipv4:127.0.0.1:1: Socket closed", "if the server speaks TLS, pass tls_ca"),
        ("Failed to connect to remote host: Connection refused", "nothing listens there"),
        ("something new", "something new; expected a server"),
    ],
)
def test_each_kind_has_its_words(message: str, words: str) -> None:
    told = connection_trouble(message)
    assert words in told
    assert "SSL_ERROR" not in told


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    folder = tmp_path_factory.mktemp("tls")
    key, crt = folder / "server.key", folder / "server.crt"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*make, "-keyout", key, "-out", crt], check=True, capture_output=True)
    return key, crt


@pytest.fixture
def tls_target(certificate: tuple[Path, Path]) -> Iterator[str]:
    """Something that speaks TLS, and says no more than that."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[1], certificate[0])
    context.set_alpn_protocols(["h2"])
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    accepted, _ = listener.accept()
                except OSError:
                    return
                with accepted:
                    accepted.settimeout(5)
                    try:
                        context.wrap_socket(accepted, server_side=True).close()
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(timeout=10)


def message_of(client: gdn_client.Client) -> str:
    with client, pytest.raises(gdn_client.NoServerError) as refused:
        client.info()
    return str(refused.value)


def test_a_tls_client_of_a_plain_server_is_told(server: Server, certificate: tuple[Path, Path]) -> None:
    told = message_of(gdn_client.Client(server.target, tls_ca=certificate[1]))
    assert "it does not speak TLS, and this client does" in told


def test_a_plain_client_of_a_tls_server_is_told(tls_target: str) -> None:
    assert "if the server speaks TLS, pass tls_ca" in message_of(gdn_client.Client(tls_target))
