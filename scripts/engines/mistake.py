"""What a deliberate mistake is; mistakes.py and mistakes_whole.py have them."""

from typing import Callable, NamedTuple


class Mistake(NamedTuple):
    change: Callable                    # of what the adapter says, before the model is made
    culprit: str                        # the tap at which the judge must find it
    known: tuple                        # names of known mistakes or readings that say the same; empty: none does
    case: str = ""                      # another case than that of the engine's mistakes


def replaced(owner, name, function):
    """owner.name becomes function(original, ..)."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *arguments, **keywords: function(original, *arguments, **keywords))
