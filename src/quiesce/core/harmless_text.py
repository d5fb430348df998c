"""Texts of others (agents, clients, exceptions), made harmless: what is shown to people, and logged, has no control characters."""

from __future__ import annotations

__all__: list[str] = []


def harmless(text: str, most: int | None = None) -> str:
    """Return a text in which all that a terminal, a log or a reader could take for something else is spelled out.

    These are control characters, line and paragraph separators, marks of writing direction, and other characters that
    are not seen. At most so many characters are returned, if a number is given.
    """
    if text.isprintable():
        return text[:most]
    return "".join(one if one.isprintable() else _spelled(one) for one in text[:most])[:most]


def _spelled(one: str) -> str:
    return one.encode("unicode_escape", "surrogatepass").decode()
