"""The shape of the project: size of modules, direction of imports, what `import eigenclock` loads. Each checker is shown to fail."""

import ast
import json
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src" / "eigenclock"
MODULES = sorted(SRC.rglob("*.py"))
NAMES = [str(path.relative_to(SRC)) for path in MODULES]
LIMIT = 400

# Everything else is optional, or at least slow to import, and is imported inside functions.
CORE = frozenset({"eigenclock", "torch", "numpy", "jaxtyping"}) | sys.stdlib_module_names
# Folders below the front ends: they import the module that defines a name, not the package that collects them all.
LOWER = ("attention", "clocks", "encodings", "present", "schedules", "theory")


def too_long(source: str) -> bool:
    return len(source.splitlines()) >= LIMIT


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING")


def imports_at_load(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that run when the module is loaded: all but those in functions and under TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            for other in node.orelse:
                yield from imports_at_load(ast.Module([other], []))
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imports_at_load(node)


def targets(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return ["." * node.level + (node.module or "")]


def optional_at_load(source: str) -> list[str]:
    """Packages outside the core that the module imports when it is loaded."""
    found = [name for node in imports_at_load(ast.parse(source)) for name in targets(node)]
    return [name for name in found if name.split(".")[0] not in CORE]


def uses_torch_nn(source: str) -> bool:
    """Whether the module reaches ``torch.nn``, anywhere in it and by any spelling."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) and any(f"{alias.name}.".startswith("torch.nn.") for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if f"{module}.".startswith("torch.nn.") or (module == "torch" and any(alias.name == "nn" for alias in node.names)):
                return True
        if isinstance(node, ast.Attribute) and node.attr == "nn" and isinstance(node.value, ast.Name) and node.value.id == "torch":
            return True
    return False


def names_from_the_root(source: str) -> list[str]:
    """Names imported from the package itself that are no module of it: an upward import that the layers cannot see."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "eigenclock":
            found += [a.name for a in node.names if not (SRC / a.name).is_dir() and not (SRC / f"{a.name}.py").is_file()]
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name == "eigenclock"]
    return found


# A path into one person's machine. The slash stands behind nothing that could make it part of an address.
_MACHINE = re.compile(r"(?<![\w./:~-])(?:/(?:work|root|home|Users|opt)/[\w.]|[A-Z]:\\\\?Users\\)")


def machine_paths(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if _MACHINE.search(line)]


def project_files() -> list[Path]:
    """What belongs to the project: what git tracks or would track, without git everything but what tools left."""
    if shutil.which("git") and (ROOT / ".git").exists():
        run = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        if run.returncode == 0:
            return [path for name in run.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    ignored = {".venv", ".git", "__pycache__", "build", "dist", "runs", "site"}
    return [p for p in ROOT.rglob("*") if p.is_file() and not any(d in ignored or d.endswith("_cache") for d in p.relative_to(ROOT).parts)]


def loaded_by(statement: str) -> set[str]:
    """The top-level packages in memory after a statement in a fresh process."""
    program = f"{statement}\nimport sys, json\nprint(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, cwd=ROOT / "src")
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout.splitlines()[-1]))


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_modules_are_short(path):
    assert not too_long(path.read_text(encoding="utf-8")), f"{path.relative_to(ROOT)} has {LIMIT} lines or more; split it by topic"


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_optional_packages_are_imported_inside_functions(path):
    assert optional_at_load(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("folder", ["theory", "schedules"])
def test_mathematics_knows_no_modules(folder):
    paths = sorted((SRC / folder).rglob("*.py"))
    assert paths
    assert [str(p.relative_to(ROOT)) for p in paths if uses_torch_nn(p.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("folder", LOWER)
def test_lower_folders_do_not_import_the_collecting_package(folder):
    found = {str(p.relative_to(ROOT)): names_from_the_root(p.read_text(encoding="utf-8")) for p in sorted((SRC / folder).rglob("*.py"))}
    assert {path: names for path, names in found.items() if names} == {}


def lint_imports(folder: Path, config: Path) -> subprocess.CompletedProcess[str]:
    program = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(sys.argv[1], no_cache=True))"
    return subprocess.run([sys.executable, "-c", program, str(config)], cwd=folder, capture_output=True, text=True, timeout=240)


def test_imports_go_down_only():
    run = lint_imports(ROOT / "src", ROOT / "pyproject.toml")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "imports go down only KEPT" in run.stdout


def test_import_loads_the_core_only():
    # Beyond the core: what torch, numpy and jaxtyping load themselves.
    allowed = loaded_by("import torch, numpy, jaxtyping")
    extra = loaded_by("import eigenclock") - allowed - {"eigenclock"} - sys.stdlib_module_names
    assert extra == set()


def test_files_hold_no_machine_paths():
    found: dict[str, list[str]] = {}
    for path in project_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        if lines := machine_paths(text):
            found[str(path.relative_to(ROOT))] = lines
    assert found == {}


# That the checkers can fail.


def test_length_checker_can_fail():
    assert too_long("x = 1\n" * LIMIT)
    assert not too_long("x = 1\n" * (LIMIT - 1))


@pytest.mark.parametrize(
    "source",
    [
        "import rich",
        "import rich.table as t",
        "from scipy.linalg import expm",
        "try:\n    import transformers\nexcept ImportError:\n    pass",
        "class A:\n    import tyro",
        "if True:\n    import polars",
        "with open('f'):\n    import matplotlib",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    import jinja2",
    ],
)
def test_optional_import_checker_can_fail(source):
    assert len(optional_at_load(source)) == 1


def test_optional_import_checker_allows_what_runs_later():
    source = """
        from typing import TYPE_CHECKING
        import os, torch.nn, numpy as np
        from eigenclock.errors import ShapeError
        if TYPE_CHECKING:
            import rich
        class A:
            def f(self):
                import scipy
    """
    assert optional_at_load(textwrap.dedent(source)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import torch.nn",
        "import torch.nn.functional as F",
        "from torch import nn",
        "from torch.nn import Module",
        "from torch.nn.functional import softplus",
        "import torch\ndef f(x):\n    return torch.nn.functional.softplus(x)",
        "def f():\n    from torch import Tensor, nn",
    ],
)
def test_torch_nn_checker_can_fail(source):
    assert uses_torch_nn(source)


def test_torch_nn_checker_allows_torch():
    assert not uses_torch_nn("import torch\nfrom torch import Tensor\nx = torch.linalg.norm(Tensor([1]))\nimport torch.nnx")


def test_root_checker_can_fail():
    assert names_from_the_root("from eigenclock import attention, rope_of_the_root, errors") == ["rope_of_the_root"]
    assert names_from_the_root("def f():\n    import eigenclock") == ["eigenclock"]
    assert names_from_the_root("import eigenclock.errors") == []


def test_machine_path_checker_can_fail():
    slash = "/"
    for folder in ("work", "root", "home", "Users", "opt"):
        assert machine_paths(f"see {slash}{folder}{slash}x for more")
        assert machine_paths(f'"{slash}{folder}{slash}x"')
    assert machine_paths("C:" + "\\Users\\x")
    assert not machine_paths("https://example.org/home/x and docs/work/plan.md and src/opt/x and PYTHON=/path/to/python")


def test_load_checker_can_fail():
    assert "rich" in loaded_by("import rich")
    assert "rich" not in loaded_by("import json")


@pytest.mark.parametrize(("line", "broken"), [("from eigenclock.high import x", True), ("x = 1", False)])
def test_import_contract_can_fail(tmp_path, line, broken):
    package = tmp_path / "eigenclock"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "low.py").write_text(line)
    (package / "high.py").write_text("x = 1")
    contract = '[tool.importlinter]\nroot_package = "eigenclock"\n[[tool.importlinter.contracts]]\nname = "down"\ntype = "layers"\n'
    config = tmp_path / "pyproject.toml"
    config.write_text(contract + 'containers = ["eigenclock"]\nlayers = ["(gone)", "high", "low"]\nexhaustive = true\n')
    assert lint_imports(tmp_path, config).returncode == int(broken)
    # A folder that stands in no layer is noticed.
    (package / "unknown.py").write_text("")
    run = lint_imports(tmp_path, config)
    assert run.returncode == 1
    assert "unknown" in run.stdout
