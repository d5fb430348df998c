"""Functions of others that are replaced for a while: one of an object is, without a look into its `__dict__`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from quiesce.core.patches import Patch

if TYPE_CHECKING:
    from collections.abc import Callable


class Owner:
    """An object with a function."""

    def say(self) -> str:
        """Return what is there before."""
        return "class"


class Fast(Owner):
    """An object whose attributes are to stay fast."""

    @property
    def __dict__(self) -> NoReturn:  # type: ignore[override]  # to see who asks
        """Raise, for who asks makes them slow."""
        raise AssertionError


def louder(original: Callable[[], str]) -> Callable[[], str]:
    """Return a replacement."""
    return lambda: original() + "!"


def test_an_object_is_not_looked_into() -> None:
    """Of an event loop that would cost every turn."""
    owner = Fast()
    first, second = Patch(owner, "say", louder), Patch(owner, "say", louder, bare=True)
    assert owner.say() == "class!!"
    second.remove()
    assert owner.say() == "class!"
    first.remove()
    assert owner.say() == "class"


def test_what_an_object_has_of_its_own_is_restored() -> None:
    """Also if its class has another by that name; and what is not its own is not left with it."""
    owner: Any = Owner()
    Patch(owner, "say", louder).remove()
    owner.__class__ = type("Other", (Owner,), {"say": lambda _: "another class"})
    assert owner.say() == "another class"
    owner.say = own = lambda: "own"
    patch = Patch(owner, "say", louder)
    assert owner.say() == "own!"
    patch.remove()
    assert owner.say is own


def test_a_replacement_on_top_stays() -> None:
    """Ours, below it, passes calls on."""
    owner: Any = Owner()
    patch = Patch(owner, "say", louder)
    owner.say = top = louder(owner.say)
    patch.remove()
    assert owner.say is top
    assert owner.say() == "class!"
