"""Options, from vLLM's configuration and from the environment."""

from __future__ import annotations

from typing import Any

import pytest

from gdn_vllm.options import Options, read


def test_without_a_server_there_are_no_options() -> None:
    assert read({}, {}) is None
    assert read({"other": 1}, {"GDN_RETRY_SECONDS": "3"}) is None


def test_the_configuration_wins_over_the_environment() -> None:
    found = read({"gdn": {"server": "a:1", "verify": False}}, {"GDN_SERVER": "b:2", "GDN_RETRY_SECONDS": "3"})
    assert found == Options(server="a:1", verify=False, retry_seconds=3.0)


def test_several_servers_are_a_list_or_separated_by_commas() -> None:
    for given in (["a:1", "b:2"], "a:1, b:2"):
        found = read({"gdn": {"server": given}}, {})
        assert found is not None and found.servers == ["a:1", "b:2"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"gdn": {"sever": "a:1"}}, "no options sever; expected some of server, model"),
        ({"gdn": {"server": "a:1", "verify": "perhaps"}}, "verify is 'perhaps', expected true or false"),
        ({"gdn": {"server": "a:1", "replay_bytes": "many"}}, "expected a value of type int"),
        ({"gdn": "a:1"}, "expected a map"),
    ],
)
def test_wrong_options_are_named(config: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(config, {})
