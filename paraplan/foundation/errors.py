"""What a user can get wrong, and the exit status each mistake has on the command line."""


class ParaplanError(Exception):
    """Base of every error that reaches a user as one line, without a traceback."""

    exit_status = 2


class InputError(ParaplanError):
    """A file or value given by the user cannot be used.

    The message names the file, the field, the value found and what is allowed, in this order:
    ``configs/plans/x.yaml: training.precision: found 'bf17', allowed: bf16, fp16, fp8, …``
    """


class NoAnswerError(ParaplanError):
    """A valid question without an answer: nothing fits, or the balancing is infeasible."""

    exit_status = 1
