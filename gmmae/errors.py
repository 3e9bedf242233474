"""The one exception that a user is meant to see.

Every error that a user can cause and mend is raised as an `InputError`, or a subclass, whose message is a single line: what
must hold, what came, what to change. The command line prints that line and exits with code 2; anything else is a bug and
keeps its traceback.
"""


class InputError(Exception):
    """Bad input: the message states the rule, what was received and the way out."""
