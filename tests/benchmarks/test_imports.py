"""The benchmark of imports: each piece runs, and the start of the interpreter is not counted."""

from __future__ import annotations

from benchmarks.imports import ImportSizes, imports


def test_each_import_is_measured() -> None:
    """Every figure compares an import to that of asyncio, and takes some time."""
    figures = imports("asyncio", ImportSizes(rounds=1))
    assert [figure.name for figure in figures] == [
        "import_quiesce",
        "import_mesh",
        "import_node",
        "import_asgi",
    ]
    assert all(len(figure.rows) == 2 and figure.rows[0].best > 0 for figure in figures)
    assert all(figure.value is not None and figure.value > 0 for figure in figures)
