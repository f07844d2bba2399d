"""The ``paraplan`` command."""

import importlib
import os
import sys
from collections.abc import Sequence

from paraplan.foundation.errors import ParaplanError

COMMANDS = {
    "nd": "search every layout of a plan config: memory filter, ranking",
    "ppb": "balance a pipeline from a layer description",
    "simulate": "play a given assignment of layers and strategies",
    "estimate": "where one layout's time and memory go, or a whole table of runs",
    "export": "write the launch configuration of a plan",
    "calibrate": "fit a device type's constants to your own measured runs",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives its exit status: 0 done, 1 no answer, 2 bad input."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            return _run(given)
        finally:
            # What cannot be written must show here, not when Python exits.
            sys.stdout.flush()
    except ParaplanError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    except BrokenPipeError:
        # The reader has seen enough.
        _write_no_more()
        return 0
    except OSError as error:
        if error.filename is None:
            _write_no_more()
        sys.stderr.write(f"{error.filename or 'standard output'}: {error.strerror or error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        return 130


def _write_no_more() -> None:
    """Python must not complain about standard output again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(given: list[str]) -> int:
    # Imported here, so that Ctrl-C finds the handler above while NumPy loads.
    from paraplan.cli.arguments import Parser

    parser = Parser(prog="paraplan", description="Plan distributed training of large language models.")
    parser.add_argument("--version", action="version", version=f"paraplan {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text, add_help=False)
    if not given or given[0] not in COMMANDS:
        parser.parse_args(given)
        parser.print_help()
        return 2
    module = importlib.import_module(f"paraplan.cli.{given[0]}")
    own = Parser(prog=f"paraplan {given[0]}", description=COMMANDS[given[0]], allow_abbrev=False)
    module.add_arguments(own)
    return int(module.run(own.parse_args(given[1:])))


def _version() -> str:
    from importlib.metadata import version

    return version("paraplan")


if __name__ == "__main__":
    sys.exit(main())
