"""Exceptions that users can act on."""


class UserError(ValueError):
    """Invalid input. The message states what is wrong, where, and what to do.

    The command line prints only the message, without a traceback, and exits with 2.
    """


class AwaitingLabels(Exception):  # noqa: N818 - not an error: annotators have to answer first
    """The run pauses until its questions are answered; run the same command again to resume."""


class InvalidFileError(ValueError):
    """A file can be decoded, but its content contradicts the settings; it must not be skipped silently."""
