"""Recordings of vLLM's scheduler outputs, made by the option GDN_RECORD in the tests of engines.

    recorded.py FILE.jsonl FILE.json     makes a small recording of what the option has written

A recording has for each step what was scheduled (`sessions.Scheduled`, as lists), what has ended, and the rows of the
batch as the layers of one KV cache group saw them: slot, first and last token, and tokens behind the row.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gdn_vllm.sessions import EngineStep, Scheduled

FOLDER = Path(__file__).parent / "recordings"
MOST_STEPS = 110


def names() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob("*.json"))


def settings(name: str) -> dict[str, Any]:
    whole = json.loads((FOLDER / f"{name}.json").read_text())
    return {"block_size": whole["block_size"], "groups": whole["groups"]}


def steps(name: str) -> Iterator[tuple[EngineStep, list[list[int]]]]:
    for scheduled, ended, rows in json.loads((FOLDER / f"{name}.json").read_text())["steps"]:
        yield EngineStep([Scheduled(*one) for one in scheduled], ended), rows


def _compact(source: Path, target: Path) -> None:
    first, *lines = [json.loads(line) for line in source.read_text().splitlines()]
    found: list[list[Any]] = []
    for line in lines:
        if "step" in line:
            scheduled = [
                [one["request"].split("-")[0], *list(one.values())[1:-1], one["fresh"]]
                for one in line["step"]["scheduled"]
            ]
            found.append([scheduled, [name.split("-")[0] for name in line["step"]["ended"]], []])
        elif not found[-1][2]:
            found[-1][2] = line["rows"]
    text = ",\n".join(json.dumps(step, separators=(",", ":")) for step in found[:MOST_STEPS])
    target.write_text(
        f'{{"block_size":{json.dumps(first["block_size"])},"groups":{first["groups"]},"steps":[\n{text}\n]}}\n'
    )


if __name__ == "__main__":
    _compact(Path(sys.argv[1]), Path(sys.argv[2]))
