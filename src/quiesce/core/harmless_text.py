"""Foreign text (of agents, clients, exceptions) without control characters, safe to show and to log."""

from __future__ import annotations

__all__: list[str] = []


def harmless(text: str, most: int | None = None) -> str:
    """Return the text with escapes in place of characters that could deceive a terminal, a log or a reader.

    These are control characters, line and paragraph separators, marks of writing direction, and other invisible
    characters. With `most`, cut the result to that many characters.
    """
    if text.isprintable():
        return text[:most]
    return "".join(one if one.isprintable() else _spelled(one) for one in text[:most])[:most]


def _spelled(one: str) -> str:
    return one.encode("unicode_escape", "surrogatepass").decode()
