"""README.md: every command names a script, a flag, a make target and a file that exist."""

import contextlib
import functools
import importlib
import io
import re

import pytest
from conftest import ROOT

README = (ROOT / "README.md").read_text()
COMMANDS = sorted(set(re.findall(r"(?:python|torchrun [^`\n]*?) ((?:-m tasks|\w+\.py)[^`\n#]*)", README)))


@functools.cache
def help_text(script: str) -> str:
    """Return what `python SCRIPT --help` prints, asked of its main() in this process."""
    name, *command = script.removeprefix("-m ").split()
    module = importlib.import_module("tasks.__main__" if name == "tasks" else name.removesuffix(".py"))
    with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit) as end:
        module.main([*command, "--help"])
    assert end.value.code == 0
    return printed.getvalue()


def test_the_readme_has_commands():
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_of_a_command_exists(command):
    script = " ".join(command.split()[: 3 if command.startswith("-m") else 1])  # -m tasks show, or train.py
    for flag in re.findall(r"--[\w-]+", command):
        assert re.search(rf"{flag}\b", help_text(script)), f"{script} has no {flag}"


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"(?:^ {4}|`)make (\w+)", README, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_files_and_metrics_that_the_readme_names_exist():
    for name in re.findall(r"`(\w+\.py)`", README):
        assert (ROOT / name).exists() or name in ("selected.py", "selected_start.py", "my_task.py"), name
    sources = "".join(path.read_text() for path in ROOT.glob("*.py"))
    for metric in re.findall(r"`((?:reward|rollout|duration|policy|value|update)/\w+)`", README):
        assert metric in sources or metric.removeprefix("policy/") in sources, metric


def test_nothing_is_left_to_fill_in_and_linked_files_exist():
    assert "@@" not in README
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target
