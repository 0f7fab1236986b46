"""Errors that a user can fix: one clear sentence that names the file or the field, and never a traceback."""


class UserError(Exception):
    """The request itself is wrong.  Commands print the sentence on stderr and exit 2.

    Example:
        >>> capscore.score("nowhere/captions.json", "references.json")
        Traceback (most recent call last):
        capscore.errors.UserError: nowhere/captions.json: there is no such file.
    """
