"""``import eigenclock`` against ``import torch``, each in a process of its own."""

from eigenclock.bench.case import Case, Work
from eigenclock.bench.process import python

TARGET = 1.15
_PROGRAM = "import time\nstart = time.perf_counter()\nimport {module}\nprint(time.perf_counter() - start)"


def cases(size: float = 1.0) -> tuple[Case, ...]:
    """One case; the size says nothing here."""
    work = Work(lambda: seconds("eigenclock"), lambda: seconds("torch"))
    return (
        Case(
            "import",
            "the import statement in a fresh process, files cached",
            "import eigenclock",
            "import torch",
            (),
            "-",
            TARGET,
            lambda: work,
            "seconds",
        ),
    )


def seconds(module: str) -> float:
    """Seconds that the import of a module takes in a fresh process."""
    return float(python("-c", _PROGRAM.format(module=module)))
