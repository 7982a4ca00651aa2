"""Notebooks of ``examples/notebooks``: executed by a kernel of Jupyter, and as pages of the site.

They are kept without outputs, so that no number in the repository can be stale: the site shows those of its build.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
LONGEST_S = 300
"""Of a cell, and of a kernel until it answers; a loaded machine is slow."""


def notebooks() -> dict[str, Path]:
    """Page of the site -> file, in order."""
    return {f"tutorials/notebooks/{path.stem}.md": path for path in sorted(FOLDER.glob("*.ipynb"))}


def executed(path: Path) -> Any:
    """A notebook with the outputs of its cells, run from top to bottom in an empty folder.

    Raises:
        nbclient.exceptions.CellExecutionError: of a cell; later ones do not run.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=LONGEST_S,
            startup_timeout=LONGEST_S,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            extra_arguments=["--log-level=ERROR"],
        )
        return client.execute()


def pages() -> dict[str, str]:
    """Page of the site -> Markdown of every notebook; they are executed at the same time."""
    files = notebooks()
    with ThreadPoolExecutor() as pool:
        found = pool.map(executed, files.values())
    return {page: _page(path, notebook) for (page, path), notebook in zip(files.items(), found, strict=True)}


def _page(path: Path, notebook: Any) -> str:
    parts = []
    for number, cell in enumerate(notebook.cells):
        parts += [cell.source] if cell.cell_type == "markdown" else [f"```python\n{cell.source}\n```", *_shown(cell)]
        if number == 0:
            parts.append(f"*A notebook: `{path.relative_to(FOLDER.parents[1])}`, with what its cells show today.*")
    return "\n\n".join(parts) + "\n"


def _shown(cell: Any) -> Iterator[str]:
    """Outputs of a cell: a picture or table where there is one, else text."""
    for output in cell.outputs:
        forms = {"text/plain": output.text} if output.output_type == "stream" else output.data
        if "image/png" in forms:
            source = f"data:image/png;base64,{forms['image/png'].replace(chr(10), '')}"
            yield f'<img alt="the figure that the cell draws" src="{source}">'
        elif "text/html" in forms:
            yield f'<div class="output">{forms["text/html"]}</div>'
        else:
            yield f"```text\n{forms['text/plain'].rstrip()}\n```"
