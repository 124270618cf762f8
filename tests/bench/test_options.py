"""One word for one thing: an option has one meaning, and a meaning has one option."""

import inspect
from types import UnionType
from typing import get_args, get_origin

import pytest
from command_options import options

from twinsolve import bench

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


FUNCTIONS = {
    "check": bench.check_twins, "cluster": bench.cluster, "denoise": bench.denoise,
    "audit": bench.audit_networks, "inspect": bench.inspect_model,
    "classify": bench.train_rows, "segment": bench.train_rows,
    "language": bench.train_rows, "longrange": bench.train_rows,
    "speed self-expression": bench.time_self_expression,
    "speed sparse-coding": bench.time_sparse_coding, "speed filters": bench.time_filters,
    "speed scale": bench.time_scale, "speed attention": bench.time_attention,
}  # fmt: skip
# What a command alone does: where results go, what is listed or loaded, which function it calls.
OF_COMMANDS = {
    "--output", "--load", "--list", "--quick", "--help", "--preset", "--auto", "--n-clusters",
    "--noisy", "--save", "--all", "--package", "--own-weights", "--instructions", "--attack",
    "--corruptions", "--dask",
}  # fmt: skip


@pytest.mark.parametrize("command", FUNCTIONS)
def test_a_function_calls_its_arguments_as_the_command_does(command):
    """An option that may be given again is a plural."""
    known = inspect.signature(FUNCTIONS[command]).parameters
    for name, own in OPTIONS.items():
        word = name.removeprefix("--").replace("-", "_")
        if command in own and name not in OF_COMMANDS:
            assert {word, f"{word}s", f"{word[:-1]}ies"} & known.keys(), name


def test_no_two_options_mean_the_same():
    named = {(option.help, name) for name, own in OPTIONS.items() for _, option in own.values()}
    assert len({text for text, _ in named}) == len(named) == len(OPTIONS)
