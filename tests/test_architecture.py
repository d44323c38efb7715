"""Imports point downwards only: a part of the library imports parts that come before it in LAYERS."""

import ast
import tomllib
from pathlib import Path

import pynade

ROOT = Path(pynade.__file__).parent

LAYERS = [  # from the bottom; a folder or a module of src/pynade each
    "_version",
    "_lazy",
    "datasets",
    "digest",
    "device",
    "atomic",
    "precision",
    "processes",
    "engines",
    "arguments",
    "kernels",
    "ordering",
    "families",
    "nets",
    "models",
    "store",
    "likelihood",
    "particles",
    "queries",
    "evaluation",
    "training",
    "classical",
    "tables",
    "plots",
    "estimators",
    "runs",
    "stream",
    "app",
    "cli",
    "__init__",
    "__main__",
]

EXCEPTIONS = {  # (importer, imported): why
    (
        "store",
        "classical",
    ): "a file may name any class of the library, looked up by name",
    ("training", "tables"): "only the type of a stream of rows, for type checkers",
    ("classical", "tables"): "only the type of a stream of rows, for type checkers",
}


def imports(path):
    """Parts of pynade that a file imports, anywhere in it, by name too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and not node.level:
            within = [f"pynade.{a.name}" for a in node.names] if node.module == "pynade" else []
            yield from [node.module, *within]
        elif isinstance(node, ast.Import):
            yield from [a.name for a in node.names]
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.startswith("pynade.")
        ):
            yield node.value  # the argument of an import_module, or words


def part_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0]


def edges():
    for path in sorted(ROOT.rglob("*.py")):
        for name in imports(path):
            head, *rest = name.split(".")
            if head == "pynade" and rest and rest[0] in LAYERS and rest[0] != part_of(path):
                yield part_of(path), rest[0], path


def test_every_part_has_a_place():
    parts = {part_of(path) for path in ROOT.rglob("*.py")}
    assert parts <= {*LAYERS}, f"say in LAYERS where {sorted(parts - {*LAYERS})} belong"


def test_imports_point_downwards():
    wrong = {
        f"{path.relative_to(ROOT)} imports {imported}"
        for part, imported, path in edges()
        if LAYERS.index(imported) > LAYERS.index(part) and (part, imported) not in EXCEPTIONS
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_exceptions_are_still_needed():
    assert {*EXCEPTIONS} <= {(part, imported) for part, imported, _ in edges()}


def test_the_library_does_not_import_the_reproduction_or_the_benchmarks():
    for path in ROOT.rglob("*.py"):
        tops = {str(name).split(".")[0] for name in imports(path) if name}
        assert not tops & {"pynade_paper", "pynade_benchmarks", "tests"}, path


def test_the_wheel_holds_the_library_alone():
    settings = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/pynade"]
    for path in ROOT.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "pynade_paper" not in text, path
        assert "pynade_benchmarks" not in text, path


def test_files_are_of_readable_size():
    lines = sorted(len(path.read_text(encoding="utf-8").splitlines()) for path in ROOT.rglob("*.py"))
    assert lines[len(lines) // 2] <= 200
    assert lines[-1] <= 450
