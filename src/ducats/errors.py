"""Errors that a user can mend."""


class UserError(ValueError):
    """Bad input: the message is one sentence that says what is wrong, where, and what to do.

    The command line prints the sentence alone and exits with 2; no traceback.
    """


class AwaitingLabels(Exception):  # noqa: N818 - not an error: a person has to answer first
    """The run pauses until its questions are answered; the same command goes on."""
