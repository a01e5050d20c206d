# SPDX-License-Identifier: Apache-2.0
"""The documents say what is so: their code runs, and what they list is what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import nvsandbox
from nvsandbox import cli, options, session, simulate, testing

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
WHERE_THINGS_LIE = re.compile(r"`((?:csrc|nvsandbox|tests|scripts|docs|benchmarks)/[\w./-]*|\.ci/run)(?:::(\w+))?`")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(language: str) -> list[object]:
    """The code blocks of a language in all pages, those in lists too."""
    found = []
    for page in PAGES:
        for number, match in enumerate(re.finditer(rf"^( *)```{language}\n(.*?)^ *```", page.read_text(), re.M | re.S)):
            indent, code = match.groups()
            code = "".join(line.removeprefix(indent) for line in code.splitlines(keepends=True))
            found.append(pytest.param(code, id=f"{name_of(page)}-{number}"))
    return found


def table_rows(text: str, heading: str) -> list[list[str]]:
    """The rows of the table whose heading begins with these cells."""
    rows = []
    lines = iter(text[text.index(heading) :].splitlines()[2:])
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return rows


def run(command: list[str], folder: Path) -> str:
    """Runs what a page prints, on simulated GPUs unless it chooses for itself, and not in this folder."""
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("NVSANDBOX_")},
        "NVSANDBOX_SIMULATE": "h100x8",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("code", blocks("python"))
def test_python_runs(code: str, tmp_path: Path) -> None:
    run([sys.executable, "-W", "error", "-c", code], tmp_path)


@pytest.mark.parametrize("code", blocks("sh"))
def test_commands_run(code: str, tmp_path: Path) -> None:
    for line in code.splitlines():
        if line.startswith(("nvsandbox ", "python ")):
            run(["sh", "-c", line], tmp_path)


def test_the_readme_shows_what_it_says() -> None:
    first = re.search(r"```python\n(.*?)```", text_of("README.md"), re.S)
    assert first is not None
    assert "with nvml_isolated() as nvml:" in first[1]
    assert len(text_of("README.md").splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        if path.startswith(("http:", "https:")):
            continue
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), f"{target} does not exist"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", other.read_text(), re.M)
            anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{target}: its headings are {sorted(anchors)}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_exist(page: Path) -> None:
    """Files and folders of this tree, and tests by name."""
    for path, test in WHERE_THINGS_LIE.findall(page.read_text()):
        if path.startswith("nvsandbox/sim/"):
            continue  # in the installed package
        assert (ROOT / path).exists(), f"{path} does not exist"
        if test:
            assert re.search(rf"^def {test}\b", (ROOT / path).read_text(), re.M), f"{path} has no {test}"


def test_development_names_all_of_the_sources() -> None:
    """R2: each part's files are named, and each folder of tests; what Python leaves in a working tree is neither."""
    text = text_of("docs/development.md")
    for folder in ("csrc/worker", "csrc/core"):
        for file in (ROOT / folder).glob("*.c"):
            assert f"`{file.name}`" in text or name_of(file) in text, file
    for file in (ROOT / "nvsandbox").glob("*.py"):
        assert file.name.startswith("_") or f"`{file.name}`" in text, file
    for folder in (ROOT / "tests").iterdir():
        if folder.is_dir() and any(path.suffix != ".pyc" for path in folder.glob("[!_.]*")):
            assert f"`{folder.name}/`" in text, folder


def test_every_public_name_is_described() -> None:
    text = text_of("docs/api.md")
    for name in [*nvsandbox.__all__, "__version__"]:
        assert re.search(rf"\b{name}\b", text), name
    for name in testing.__all__:
        assert f"`{name}(" in text, name
    for name in vars(session.NVMLSession):
        if not name.startswith("_"):
            assert f"| `{name}" in text, f"NVMLSession.{name}"
    assert "| `options` |" in text


def test_every_option_is_described() -> None:
    rows = {row[0]: row for row in table_rows(text_of("docs/api.md"), "| option | type |")}
    assert list(rows) == [f"`{field.name}`" for field in fields(options.Options)]
    for field in fields(options.Options):
        _, _, default, variables, *_ = rows[f"`{field.name}`"]
        assert default.strip("`") == (f'"{field.default}"' if isinstance(field.default, str) else str(field.default))
        for variable in options._ENVIRONMENT[field.name][0]:
            assert f"`{variable}`" in variables
    docstring = nvsandbox.nvml_isolated.__doc__ or ""
    for field in fields(options.Options):
        assert f"\n    {field.name}: " in docstring, f"the docstring lacks {field.name}"


def test_every_error_is_described() -> None:
    rows = {row[0].strip("`"): row for row in table_rows(text_of("docs/api.md"), "| | also a | attributes |")}
    errors = {name for name in nvsandbox.__all__ if isinstance(getattr(nvsandbox, name), type)}
    errors = {name for name in errors if issubclass(getattr(nvsandbox, name), Exception)}
    assert set(rows) == errors
    for name, row in rows.items():
        for base in getattr(nvsandbox, name).__bases__:
            assert base.__name__ in row[1], f"{name} is also a {base.__name__}"
    made = [
        nvsandbox.SandboxUnavailable("", ()),
        nvsandbox.SandboxStartError("step"),
        nvsandbox.WorkerDied("call", 11, None),
        nvsandbox.CallTimeout("call", 1.0),
        nvsandbox.StaleHandle("call"),
    ]
    for error in made:
        for attribute in set(vars(error)) - {"value"}:  # pynvml's own
            assert f"`{attribute}`" in rows[type(error).__name__][2], f"{type(error).__name__}.{attribute}"


def test_the_simulators_keys() -> None:
    text = text_of("docs/simulator.md")
    listed: dict[str, list[str]] = {}
    for heading in re.findall(r"^\| key \| kind \| default .*$", text, re.M):
        assert heading == "| key | kind | default | example | |"
    for part in text.split("| key | kind | default | example | |\n")[1:]:
        for line in part.splitlines()[1:]:
            if not line.startswith("|"):
                break
            key, kind, default, example, *_ = (cell.strip(" `") for cell in line.strip("|").split(" | "))
            assert key not in listed
            listed[key] = [kind, default, example]
    assert set(listed) == set(testing.option_keys())
    defined = re.findall(r'^X \((\w+), \w+, "(.*?)",', text_of("csrc/sim/options.def"), re.M)
    for key, default in defined:
        assert listed[key][:2] == [testing.option_keys()[key][0], default], key
    for kind in {kind for kind, _ in testing.option_keys().values()}:
        assert f"`{kind}` " in text, f"the kind {kind} is not explained"
    for key, (_, _, example) in listed.items():
        assert example.startswith(f"{key}=")
        simulate.parse(f"h100x3,{example}")


def test_the_simulators_models() -> None:
    rows = {row[0].strip("`"): row[1:] for row in table_rows(text_of("docs/simulator.md"), "| model | product name |")}
    assert {key: row[0] for key, row in rows.items()} == testing.profiles()
    memory = dict(re.findall(r'^X \((\w+), "[^"]*", (\d+),', text_of("csrc/sim/profiles.def"), re.M))
    for key, (_, mib, mig) in rows.items():
        assert mib == memory[key]
        assert mig == (", ".join(f"`{name}`" for name in simulate.mig_profiles(key)) or "none")


def test_the_tables_of_security_are_the_codes() -> None:
    """Each refused call is named, and none that is not refused."""
    code = text_of("csrc/worker/denylist.c")
    text = text_of("docs/security.md")
    table = " ".join(row[1] for row in table_rows(text, "| group | calls |"))
    both, library = (
        {*re.findall(r"SCMP_SYS \((\w+)\)", calls), *(n.lower() for n in re.findall(r"\bNR_(\w+),", calls))}
        for calls in re.findall(r"static const int denied(?:_library)?\[\] = \{(.*?)^\};", code, re.S | re.M)
    )
    assert both
    assert library
    assert not both & library
    for call in both | library:
        assert re.search(rf"\b{call}\b", table), f"{call} is refused and not in the table"
    run = text[text.index("The filter of `--lockdown`") :].split("\n\n")[0]
    objects = next(row[1] for row in table_rows(text, "| group | calls |") if row[0] == "objects with a number or name")
    left_out = set(re.findall(r"\w+", f"{run} {objects}"))
    assert {call for call in both | library if call in left_out} == library
    for variable in re.findall(r"`(NVSANDBOX_\w+)`", text):
        assert variable == "NVSANDBOX_DEBUG"


def test_the_stages_of_architecture_are_the_codes() -> None:
    """The start-up steps of the table in the order of the code's."""
    main = text_of("csrc/worker/main.c")
    names = dict(re.findall(r'case (NVS_STEP_\w+): return "(.*)";', text_of("csrc/steps.h")))
    stages = [names[step] for step in re.findall(r"^    \{ (NVS_STEP_\w+),", main, re.M)]
    rows = table_rows(text_of("docs/architecture.md"), "| | step (as errors name it)")
    told = [step for row in rows for step in row[1].split(", ")]
    assert [step for step in told if step in stages] == stages


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## (\S+)", text_of("CHANGELOG.md"), re.M)
    assert versions[0] == nvsandbox.__version__
    assert re.search(rf"version: '{re.escape(versions[0])}'", text_of("meson.build"))


def test_commands_are_described() -> None:
    for command in cli.main.commands:
        assert f"nvsandbox {command}" in text_of("docs/cli.md")


def test_the_options_of_query_are_described() -> None:
    text = text_of("docs/cli/query.md") + text_of("docs/cli.md")
    for option in cli.main.commands["query"].params:
        for name in option.opts:
            assert re.search(rf"`{name}[` ]", text), name
