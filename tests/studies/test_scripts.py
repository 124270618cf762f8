"""Every script of studies/ is run by one command line, whose words are those of the commands."""

import re
from importlib import import_module
from pathlib import Path

import pytest
import typer
from command_options import options
from shared.script import command_of
from typer.testing import CliRunner

STUDIES = Path(__file__).parents[2] / "studies"
SCRIPTS = sorted(path.stem for path in STUDIES.glob("*.py"))


def say(script, *words):
    """Output and exit code of a script, without frames."""
    result = CliRunner().invoke(command_of(import_module(script)), words, env={"COLUMNS": "120"})
    return re.sub(r"[\s│]+", " ", result.output), result.exit_code


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_what_the_script_says_of_itself(script):
    said, code = say(script, "--help")
    assert code == 0
    assert import_module(script).__doc__.partition("\n")[0] in said
    assert "Folder for the results." in said


def test_options_mean_what_they_mean_in_commands():
    known = {name: option.help for name, own in options().items() for _, option in own.values()}
    for script in SCRIPTS:
        for option in typer.main.get_command(command_of(import_module(script))).params:
            if option.param_type_name == "option":
                assert known.setdefault(option.opts[0], option.help) == option.help, script
    assert len({*known.values()}) == len(known)


def test_there_is_no_other_parser():
    for path in STUDIES.rglob("*.py"):
        text = path.read_text()
        assert "argparse" not in text, path
        assert ("typer.Typer(" in text) == (path.name == "script.py"), path
        assert (path.parent == STUDIES) == text.endswith("    run_script(__file__)\n"), path


def test_what_is_not_known_ends_in_words(tmp_path):
    said, code = say("costs", "--row", "softmx", "--output", str(tmp_path))
    assert code == 2
    assert "must be among softmax, NeuTRENO" in said
    assert not list(tmp_path.iterdir())
