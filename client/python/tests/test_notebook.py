"""What notebooks show, and bars for what takes long."""

from __future__ import annotations

import asyncio
import sys

import numpy as np
import pytest
from server import Server

import gdn_client
from gdn_client import aio
from gdn_client.notebook import size, table


def test_reprs_tell_model_layers_tokens_and_tier(client: gdn_client.Client) -> None:
    x = np.zeros((3, client.model("next").dims.hidden_size), np.float32)
    assert "next" in client._repr_html_()
    assert "gdn_server" in client._repr_html_()
    with client.session(session_id="shown") as session:
        session.prefill(session.layers[0], x)
        for shown in (session._repr_html_(), client.batch([session])._repr_html_()):
            for cell in ("shown", "next", len(session.layers), "0..3", "device"):
                assert f"<td>{cell}</td>" in shown
        assert "shown of models/next" in repr(session)
        assert session.model == "next"
    with gdn_client.Client("unix:/nowhere/gdn.sock") as nobody:
        assert "no answer" in nobody._repr_html_()


def test_what_is_shown_is_escaped() -> None:
    shown = table("<b>", ["<i>"], [["<script>", 1]])
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert [size(count) for count in (0, 1023, 1536, 5 << 20, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 MiB",
        "3.0 TiB",
    ]


def test_bars_go_to_their_end(
    client: gdn_client.Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tqdm")
    x = np.zeros((20, client.model("next").dims.hidden_size), np.float32)
    limits = type(client.limits)()
    limits.CopyFrom(client.limits)
    limits.max_message_bytes = (64 << 10) + 7 * (x[0].nbytes + 50)
    monkeypatch.setattr(client, "_limits", limits)
    with client.session() as session:
        session.prefill(session.layers[0], x, progress=True)
        assert "20.0/20.0" in capsys.readouterr().err
        file = session.export_state(progress=True)
        assert "export" in capsys.readouterr().err
        client.import_state(file, progress=True).delete()
        assert "100%" in capsys.readouterr().err


def test_asyncio_has_them_too(server: Server, client: gdn_client.Client, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    x = np.zeros((3, client.model("next").dims.hidden_size), np.float32)

    async def main() -> None:
        async with aio.Client(server.target) as connected, await connected.session(session_id="shown-aio") as session:
            await session.prefill(session.layers[0], x, progress=True)
            file = await session.export_state(progress=True)
            await (await connected.import_state(file, progress=True)).delete()
            for shown in (session._repr_html_(), connected.batch([session])._repr_html_()):
                assert "<td>shown-aio</td>" in shown

    asyncio.run(main())
    bars = capsys.readouterr().err
    assert all(what in bars for what in ("3.00/3.00", "export", "import: 100%"))


def test_without_tqdm_a_bar_says_what_it_wants(client: gdn_client.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with client.session() as session:
        with pytest.raises(ImportError, match=r"gdn-client\[progress\]"):
            session.export_state(progress=True)
        assert session.export_state()
