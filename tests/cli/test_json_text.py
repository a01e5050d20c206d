# SPDX-License-Identifier: Apache-2.0
"""U19: names that are no UTF-8 in --json: one rule for all commands, U+FFFD for each byte that is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import nvsandbox
from nvsandbox.cli import jsontext

NAME = os.fsdecode(b"n\xffvidia-\xe4\xb8-caf\xc3\xa9")
TOLD = "n\ufffdvidia-\ufffd\ufffd-caf\u00e9"


def test_values_and_keys() -> None:
    made = jsontext.dumps({NAME: [NAME, (NAME, 1, None)], "n": {"inner": NAME}}, allow_nan=False)
    made.encode("utf-8")
    assert json.loads(made) == {TOLD: [TOLD, [TOLD, 1, None]], "n": {"inner": TOLD}}
    assert "\\ud" not in made


def test_no_command_makes_json_in_another_way() -> None:
    """Else it would have a rule of its own."""
    for source in sorted((Path(nvsandbox.__file__).parent / "cli").glob("*.py")):
        if source.name != "jsontext.py":
            assert "json.dumps(" not in source.read_text().replace("jsontext.dumps(", ""), source.name


@pytest.mark.parametrize(
    "arguments",
    [["nodes", "--json", "--dev"], ["run", "--json", "--dev-root"], ["doctor", "--json", "--driver-root"]],
    ids=lambda arguments: arguments[0],
)
def test_errors_that_name_a_path(arguments: list[str], tmp_path: Path) -> None:
    path = os.path.join(str(tmp_path), NAME)
    more = ["--", "true"] if arguments[0] == "run" else []
    command = [str(Path(sys.executable).parent / "nvsandbox"), *arguments, path, *more]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "utf-8"}, check=False)
    found = [json.loads(stream.decode("utf-8")) for stream in (done.stdout, done.stderr) if stream.startswith(b"{")]
    assert found
    json.dumps(found, ensure_ascii=False).encode("utf-8")  # no lone surrogates
