"""Errors that a user can mend."""


class UserError(ValueError):
    """Bad input: the message is one sentence that says what is wrong, where, and what to do.

    The command line prints the sentence alone and exits with 2; no traceback.
    """
