"""Notebooks: execute them, and show them as pages of the site."""

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient
from nbconvert import MarkdownExporter
from nbformat import NotebookNode

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
# Without ipywidgets, a library warns that it shows its bars as text.
ENVIRONMENT = {"PYTHONWARNINGS": "ignore:IProgress not found"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook; the notebook itself can be downloaded."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        markdown, pictures = page(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=markdown))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures."""
    resources = {"unique_key": path.stem, "output_files_dir": path.stem}
    markdown, found = MarkdownExporter().from_notebook_node(nbformat.read(path, as_version=4), resources)
    title, _, rest = markdown.lstrip().partition("\n")
    download = f'<a class="md-button" href="{path.name}" download>Download this notebook</a>'
    return f"{title}\n\n{download}\n{rest}", found["outputs"]


def on_page_markdown(markdown: str, **_: object) -> str:
    """Let links to notebooks, which repositories display, lead to their pages."""
    return re.sub(r"(\]\([^)]*)\.ipynb\)", r"\1.md)", markdown)


def execute(path: Path, folder: Path, **parameters: Any) -> NotebookNode:
    """Execute a notebook in a folder; the cell with the tag "parameters" gets other values."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", ()):
            cell.source += "".join(f"\n{name} = {value!r}" for name, value in parameters.items())
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, record_timing=False, coalesce_streams=True, resources=resources)
    client.execute(env={**os.environ, **ENVIRONMENT})
    return notebook


def clean(notebook: NotebookNode) -> None:
    """Remove what should not be stored: progress bars that have disappeared, reports, versions."""
    notebook.metadata.language_info = {"name": "python"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [
                output for output in cell.outputs if output.get("data", {}).get("text/html") != ""
            ]
            for output in cell.outputs:
                if "<iframe" in output.get("data", {}).get("text/html", ""):
                    del output.data["text/html"]


def main() -> None:
    """Execute all notebooks and store their outputs."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        sys.stderr.write(f"{path.name} …\n")
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(path, Path(folder))
        clean(notebook)
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
