"""The one kind of error that is the user's to mend."""


class InputError(ValueError):
    """Bad input: the message is one sentence (or one line per fault) that says what is wrong and how to mend it."""
