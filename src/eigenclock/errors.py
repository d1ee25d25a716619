"""The error classes: each message says what was got, what was expected and what to do."""


class EigenclockError(Exception):
    """Base of every error the library raises on purpose."""


class ShapeError(EigenclockError, ValueError):
    """A tensor has the wrong rank, width, number of heads or dtype."""


class GrowthError(EigenclockError, ValueError):
    """A generator grows (Re lambda > 0), or a decay is used where it would grow (without ``causal``)."""


class AxiomError(EigenclockError, ValueError):
    """A combination is not a one-parameter group, for example two generators that do not commute."""


class ClockError(EigenclockError, ValueError):
    """Times are NaN, decreasing where order matters, or have already lost the precision they need."""


class ConfigError(EigenclockError, ValueError):
    """A specification has unknown, misspelt, missing or contradictory keys."""


class UnsupportedError(EigenclockError, NotImplementedError):
    """A backend or option asked for by name cannot carry this call; it never falls back silently."""


class UnknownNameError(EigenclockError, KeyError):
    """A name is in no registry; the message lists the nearest known one."""

    def __str__(self) -> str:  # KeyError prints the repr of its argument, which is no sentence
        return str(self.args[0]) if self.args else ""
