"""Execute the notebooks of the docs with small settings, and check what is stored in them."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from command_checks import check_quote, inline_code, shell_lines

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbconvert")
pytest.importorskip("ipykernel")

DOCS = Path(__file__).parent.parent / "docs"
SMALL: dict[str, dict[str, Any]] = {
    "own-images": {"N_IMAGES": 60, "IMAGE_SIZE": 32, "ROUNDS": 1},
    "compare-queries": {"QUERIES": ("random", "coverage"), "SEEDS": (0,), "ROUNDS": 1, "N_SOURCE": 100},
    "custom-parts": {"N_SOURCE": 200, "EPOCHS": 2, "BUDGET": (13,), "QUERY_EPOCHS": (1,)},
}
NAMES = [path.stem for path in sorted((DOCS / "notebooks").glob("*.ipynb"))]


@pytest.fixture(scope="module")
def notebooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebooks", DOCS / "_hooks" / "notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outputs(notebook: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return source and data of each output."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            yield cell.source, output.get("data", {"text/plain": output.get("text")})


@pytest.mark.parametrize("name", NAMES)
def test_notebook_runs(name: str, notebooks: ModuleType, tmp_path: Path) -> None:
    notebook = notebooks.execute(DOCS / "notebooks" / f"{name}.ipynb", tmp_path, **SMALL[name])
    pictures = [data for _, data in outputs(notebook) if "image/png" in data]
    stored = nbformat.read(DOCS / "notebooks" / f"{name}.ipynb", as_version=4)
    assert len(pictures) == len([data for _, data in outputs(stored) if "image/png" in data])
    if name == "custom-parts":
        table, report = ("<table>", "srcdoc=")
        assert any(
            source.endswith("\nmine") and table in data["text/html"] for source, data in outputs(notebook)
        )
        assert any(
            source == "mine.report()" and report in data["text/html"] for source, data in outputs(notebook)
        )


@pytest.mark.parametrize("name", NAMES)
def test_stored_notebook_is_executed_and_clean(name: str) -> None:
    path = DOCS / "notebooks" / f"{name}.ipynb"
    assert path.stat().st_size < 300_000
    assert str(Path.home()) not in path.read_text(encoding="utf-8")
    notebook = nbformat.read(path, as_version=4)
    executed = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert executed == list(range(1, len(executed) + 1)), "run `make notebooks`"
    for _, data in outputs(notebook):
        assert data, "an error or an empty output"
        assert "site-packages" not in str(data)


@pytest.mark.parametrize("name", NAMES)
def test_commands_of_notebooks_can_be_typed(name: str, notebooks: ModuleType, tmp_path: Path) -> None:
    markdown, _ = notebooks.page(DOCS / "notebooks" / f"{name}.ipynb")
    page = tmp_path / "page.md"
    page.write_text(markdown, encoding="utf-8")
    for quote in (*shell_lines(page, "sh"), *inline_code(page)):
        check_quote(quote)
