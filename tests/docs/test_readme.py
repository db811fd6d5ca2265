"""Every code block of the README and of the documentation's pages runs as it stands.

The blocks of one page run in their order in one empty directory. `python` blocks share one namespace. A `bash`
block is one script that has to succeed. In a `console` block the lines after `$ ` are commands that have to
succeed, and what stands below one has to be in its output, line by line, white space aside. `bash` lines that
install or build (`pip install`, `make`) are not run: what they name has to exist. `json` blocks have to be JSON; `text`
blocks are drawings.

`make examples` writes the output of today's code into the `console` blocks.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "docs/index.md",
    "docs/predictions.md",
    "docs/uncertainty.md",
    "docs/cli.md",
    "docs/losses.md",
    "docs/calibrators.md",
    "docs/data.md",
    "docs/models.md",
    "docs/training.md",
    "docs/interop.md",
    "docs/studies.md",
    "docs/meta.md",
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KINDS = {"python", "bash", "console", "json", "text"}
ENVIRONMENT = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100"}


@dataclass(frozen=True)
class Block:
    """One fenced block of a page, with the line where it starts."""

    kind: str
    text: str
    line: int


def blocks(markdown: str) -> list[Block]:
    return [
        Block(found[1], found[2], markdown.count("\n", 0, found.start()) + 1)
        for found in FENCE.finditer(markdown)
    ]


def is_setup(command: str) -> bool:
    """Whether a line installs or builds, which a test must not do once more."""
    words = shlex.split(command, comments=True)
    return words[:1] == ["make"] or words[:2] == ["pip", "install"]


def missing(command: str) -> list[str]:
    """What a line that installs or builds names and does not exist: extras, make targets, files."""
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        return [word for word in words[1:] if "=" not in word and word not in targets]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wrong = []
    arguments = iter(words[2:])
    for word in arguments:
        name, _, extras = word.partition("[")
        if word == "-c":
            file = next(arguments)
            wrong += [] if (ROOT / file).is_file() else [file]
        elif word == "-e":
            continue
        else:
            wrong += [] if name in (project["name"], ".") else [name]
            known = project["optional-dependencies"]
            wrong += [extra for extra in extras.rstrip("]").split(",") if extra and extra not in known]
    return wrong


def shell(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


NUMBER = re.compile(r"\d+(?:\.\d+)?")


def alike(shown: str, promised: str) -> bool:
    """The same line but for white space and the last digits: another CPU rounds otherwise, and so redraws otherwise."""
    if NUMBER.sub("#", " ".join(shown.split())) != NUMBER.sub("#", " ".join(promised.split())):
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(promised), strict=True)
    return all(abs(float(a) - float(b)) <= 0.02 + 0.02 * float(b) for a, b in pairs)


def run_console(text: str, folder: Path) -> list[str]:
    """Run the commands of a console block; what failed, or was promised and did not appear."""
    wrong: list[str] = []
    shown: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            command = line.removeprefix("$ ")
            done = shell(command, folder)
            shown = done.stdout.splitlines()
            if done.returncode:
                wrong.append(f"{command} exits with {done.returncode}: {done.stdout}")
        elif line.strip() and not any(alike(row, line) for row in shown):
            wrong.append(f"not in the output: {line}")
    return wrong


def with_output(text: str, folder: Path) -> str:
    """A console block with what its commands print today."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            lines += [line, *shell(line.removeprefix("$ "), folder).stdout.rstrip().splitlines()]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def run(block: Block, folder: Path, namespace: dict[str, Any], where: str) -> list[str]:
    """Run one block; what is wrong with it."""
    commands = [line for line in block.text.splitlines() if line.strip()]
    if block.kind == "bash" and any(is_setup(command) for command in commands):
        assert all(is_setup(command) for command in commands), f"{where}: installing is a block of its own"
        return [f"{name} does not exist" for command in commands for name in missing(command)]
    match block.kind:
        case "bash":
            done = shell(block.text, folder)
            return [f"exits with {done.returncode}: {done.stdout}"] if done.returncode else []
        case "console":
            return run_console(block.text, folder)
        case "json":
            json.loads(block.text)
        case "python":
            # The block is ours and stands in a file of this repository: running it is what the test is for.
            exec(compile(block.text, where, "exec"), namespace)  # noqa: S102
    return []


@pytest.mark.parametrize("page", PAGES)
def test_code_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks((ROOT / page).read_text(encoding="utf-8")):
        where = f"{page}:{block.line}"
        assert block.kind in KINDS, f"{where}: say what this block is, one of {sorted(KINDS)}"
        assert run(block, tmp_path, namespace, where) == [], where


def test_readme_shows_both_ways_in() -> None:
    found = blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    assert {"python", "console", "bash"} <= {block.kind for block in found}
    assert any("calibrant evaluate" in block.text for block in found)
    assert any("cal.evaluate" in block.text for block in found)


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("make demo test", []),
        ("make coffee", ["coffee"]),
        ('pip install "calibrant[parquet]"', []),
        ('pip install "calibrant[coffee]"', ["coffee"]),
        ("pip install -c constraints.txt -e '.[dev,docs]'", []),
        ("pip install -c absent.txt .", ["absent.txt"]),
        ("pip install another", ["another"]),
    ],
)
def test_setup_lines_are_checked(command: str, wrong: list[str]) -> None:
    assert is_setup(command)
    assert missing(command) == wrong


def test_a_promise_that_is_not_kept_is_seen(tmp_path: Path) -> None:
    assert run_console("$ printf 'a   b\\nc 1.00\\n'\na b\nc 1.01\n", tmp_path) == []
    assert len(run_console("$ echo c 1.00\nc 1.10\n", tmp_path)) == 1
    assert run_console("$ echo a\nb\n", tmp_path) == ["not in the output: b"]
    assert len(run_console("$ exit 3\n", tmp_path)) == 1


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]*)?\)", document.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", target) and not (document.parent / target).exists():
                broken.append(f"{document.relative_to(ROOT)} -> {target}")
    assert broken == []


def refresh(page: Path, folder: Path) -> None:
    """Write today's output into the console blocks of a page, running its other blocks on the way."""
    markdown = page.read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(markdown):
        if block.kind == "console":
            fence = "```console\n{}```\n".format
            markdown = markdown.replace(fence(block.text), fence(with_output(block.text, folder)))
        else:
            problems = run(block, folder, namespace, f"{page.name}:{block.line}")
            assert problems == [], problems
    page.write_text(markdown, encoding="utf-8")


if __name__ == "__main__":
    for each in PAGES:
        with tempfile.TemporaryDirectory() as scratch:
            os.chdir(scratch)
            refresh(ROOT / each, Path(scratch))
            os.chdir(ROOT)
        print(f"refreshed {each}")
