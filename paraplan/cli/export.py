"""``paraplan export``: a plan as a framework's launch configuration."""

import argparse
import sys
from pathlib import Path

from paraplan.cli.arguments import Parser, positive
from paraplan.foundation.documents import read_mapping, write_whole
from paraplan.foundation.errors import InputError


def add_arguments(parser: Parser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="plan.json of a planned configuration")
    parser.add_argument(
        "--to", required=True, metavar="FRAMEWORK", help="megatron, mindspeed, mindformers, hyperparallel, torchtitan"
    )
    parser.add_argument("--rank", type=positive, default=1, help="which plan (1)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write here instead of standard output")


def run(arguments: argparse.Namespace) -> int:
    from paraplan.frameworks_io.export import export, launch_of

    launch = launch_of(read_mapping(Path(arguments.plan)), arguments.rank, arguments.plan)
    try:
        text = export(launch, arguments.to)
    except InputError as error:
        raise InputError(f"{arguments.plan}: {error}") from None
    if arguments.output:
        write_whole(Path(arguments.output), text)
    else:
        sys.stdout.write(text)
    return 0
