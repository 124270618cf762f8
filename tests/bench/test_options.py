"""One word for one thing: an option has one meaning, and a meaning has one option."""

import inspect
from types import UnionType
from typing import get_args, get_origin

import pytest
from command_line import options

OPTIONS = options()


def type_of(command, name):
    """What an option holds, whether or not it may be left out or given again."""
    kind = get_args(inspect.signature(command.callback).parameters[name].annotation)[0]
    while get_origin(kind) in (UnionType, list):
        kind = get_args(kind)[0]
    return kind


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_has_one_meaning_and_one_type(name):
    said = {
        (option.help, option.metavar, type_of(command, option.name))
        for command, option in OPTIONS[name].values()
    }
    assert len(said) == 1, said


def test_no_two_options_mean_the_same():
    named = {(option.help, name) for name, own in OPTIONS.items() for _, option in own.values()}
    assert len({text for text, _ in named}) == len(named) == len(OPTIONS)
