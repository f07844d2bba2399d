"""The commands that README documents, as typed there."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from paraplan.cli import COMMANDS, main
from paraplan.question.balance_spec import BalanceSpec
from paraplan.question.plan_config import CLUSTER_KEYS, SEARCH_KEYS, SECTIONS, TRAINING_KEYS
from paraplan.question.training import TrainingSpec

ROOT = Path(__file__).resolve().parents[2]
CONFIG = str(ROOT / "configs/plans/llama3-8b-8xh100.yaml")


def test_readme_documents_every_command_and_no_other() -> None:
    documented = set(re.findall(r"`paraplan (\w+)", (ROOT / "README.md").read_text()))
    assert documented == set(COMMANDS)


def test_configuration_page_documents_every_key() -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    words = set(re.findall(r"[a-z_0-9]+", page))
    known = [field.name for spec in (TrainingSpec, BalanceSpec) for field in fields(spec)]
    for key in (*known, *SECTIONS, *SEARCH_KEYS, *CLUSTER_KEYS, *TRAINING_KEYS):
        assert key in words, key


@pytest.mark.parametrize(
    "command",
    [
        "nd -y CONFIG",
        "nd -y CONFIG --explain tp=8,pp=4",
        "ppb -m llama2_70b -s 16 -mb 32 -i 2 -t 5 -O 0",
        "estimate CONFIG --set tp=8",
    ],
)
def test_documented_command_runs(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(command.replace("CONFIG", CONFIG))) == 0
    assert capsys.readouterr().out


def test_every_option_of_every_command_has_a_help_text(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        with pytest.raises(SystemExit) as stopped:
            main([name, "--help"])
        assert stopped.value.code == 0
        assert f"paraplan {name}" in capsys.readouterr().out
