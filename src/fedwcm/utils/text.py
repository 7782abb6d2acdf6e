"""Text from elsewhere, as it may be shown."""


def printable(text: str) -> str:
    """Return a text without characters that steer a terminal or break a line of a log: they are escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
