"""The pages of the site: those that GitHub shows, at the same places, so that the same links work in both.

A hook of MkDocs. It takes every page of the repository and the files that pages link to, reads the order of pages
from docs/README.md, and adds the reference, which mkdocstrings makes of docstrings.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
INDEX = "docs/README.md"
FOLDERS = (".", "docs", "docs/decisions", "docs/flags", "bench")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
MODULES = (  # of the reference; a name that stands in several is described in the first
    "minigraph.static", "minigraph.static.nn", "minigraph.static.amp", "minigraph.nn", "minigraph.nn.functional",
    "minigraph.nn.initializer", "minigraph.optimizer", "minigraph.optimizer.lr", "minigraph.regularizer",
    "minigraph.tensor", "minigraph.tensor.foreach", "minigraph.linalg", "minigraph.metric", "minigraph.io",
    "minigraph.incubate.optimizer", "minigraph.profiler", "minigraph.cuda", "minigraph.errors", "minigraph.opdef",
    "minigraph.passes.engine.rule", "minigraph.passes.engine.pattern",
)  # fmt: skip


def pages() -> list[str]:
    """Paths of all pages in the repository."""
    return [path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.md"))]


def linked(page: str) -> Iterator[str]:
    """Files of the repository that a page links to, itself not among the pages: pictures, examples."""
    for link in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        path = (ROOT / page).parent / link
        if "://" not in link and path.is_file() and path.suffix != ".md":
            yield path.resolve().relative_to(ROOT).as_posix()


def navigation() -> list[dict[str, Any]]:
    """README, then the sections of docs/README.md; a link to the README of a folder stands for all of its pages."""
    text = (ROOT / INDEX).read_text(encoding="utf-8")
    sections = [{title: list(_entries(part))} for title, part in SECTION.findall(text)]
    return [{"Home": ["README.md", INDEX]}, *sections, {"Reference": ["docs/api/README.md", *map(_reference, MODULES)]}]


def _entries(section: str) -> Iterator[Any]:
    for link in LINK.findall(section):
        path = (ROOT / INDEX).parent.joinpath(link).resolve().relative_to(ROOT)
        if path.name == "README.md" and path.parent.as_posix() in FOLDERS[2:4]:
            own = sorted(p for p in pages() if Path(p).parent == path.parent and p != path.as_posix())
            yield {path.parent.name.capitalize(): [path.as_posix(), *own]}
        else:
            yield path.as_posix()


def _reference(module: str) -> str:
    return f"docs/api/{module}.md"


def reference() -> dict[str, str]:
    """{path: text} of the pages of the reference."""
    told: dict[int, str] = {}  # id of an object -> where it is described
    made, rows = {}, []
    for name in MODULES:
        module = importlib.import_module(name)
        parts = []
        for public in _public(module):
            if id(thing := getattr(module, public)) not in told:
                told[id(thing)] = name
                parts.append(f"::: {_path(thing, name, public)}\n")
        first = (inspect.getdoc(module) or "").partition("\n")[0]
        made[_reference(name)] = "\n".join([f"# {name}\n", f"{first}\n", *parts])
        rows.append(f"| [{name}]({name}.md) | {first} |")
    head = "# Reference\n\nMade of the docstrings in the code.\n\n| module | |\n|---|---|"
    return {"docs/api/README.md": "\n".join([head, *rows, ""]), **made}


def _public(module: Any) -> list[str]:
    """Functions and classes of a module, what is imported from outside of minigraph left out."""
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    return [name for name in names if _is_ours(getattr(module, name))]


def _is_ours(thing: Any) -> bool:
    kind = inspect.isclass(thing) or inspect.isfunction(thing)
    return kind and thing.__module__.startswith("minigraph")


def _path(thing: Any, module: str, public: str) -> str:
    """Where a thing is written, for mkdocstrings; where that is hidden, the name that users import."""
    written = inspect.getmodule(thing)
    known = written is not None and getattr(written, thing.__name__, None) is thing
    return f"{thing.__module__}.{thing.__name__}" if known else f"{module}.{public}"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The order of pages."""
    config.nav = navigation()
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """All pages, instead of those under docs/ only."""
    own = [*pages(), *{file for page in pages() for file in linked(page)}]
    own += [f"docs/site/{path.name}" for path in Path(__file__).parent.iterdir() if path.suffix in (".css", ".js")]
    theme = [file for file in files if file.src_dir != config.docs_dir]
    made = [File(path, str(ROOT), config.site_dir, use_directory_urls=False) for path in own]
    api = [File.generated(config, path, content=text) for path, text in reference().items()]
    return Files([*theme, *made, *api])
