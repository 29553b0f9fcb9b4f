"""Hook of mkdocs: README.md as the first page, the engines' own pages, and pages for what the docs link to elsewhere.

On GitHub a link such as ../examples/README.md leads to the file in the repository. The site has no repository to link
to, so it gets a page for each such file: Markdown as it is, other text as a code block, a folder as its README or as a
list of its files.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_NEEDS = re.compile(r"^<!-- needs: (.*?) -->\n", re.MULTILINE)
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".mjs": "javascript", ".sh": "bash"}
_ENGINE_PAGE = re.compile(r"engines/(?P<name>\w+)/(docs/)?(?P<page>[\w-]+\.md)")
_IMAGES = (".png", ".svg", ".jpg")
_origins: dict[str, str] = {}
"""The file in the repository behind each page."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the first page and every file that is linked to, and what those link to."""
    _origins.clear()
    engines = (path.relative_to(ROOT).as_posix() for path in ROOT.glob("engines/*/docs/*.md"))
    todo = ["README.md", *engines, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    while todo:
        origin = todo.pop()
        uri = site_uri(origin)
        if uri in _origins:
            continue
        _origins[uri] = origin
        path = ROOT / origin
        if not origin.startswith("docs/"):
            if path.suffix in _IMAGES:
                files.append(File.generated(config, uri, abs_src_path=str(path)))
                continue
            files.append(File.generated(config, uri, content=page_text(path)))
        if is_markdown(path):
            todo += [target for target, _ in links(path)]
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to pages of the site, and say above a block what it needs."""
    origin = source_page(_origins[page.file.src_uri])
    here = posixpath.dirname(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        target, anchor = resolve(origin, link[2])
        if target is None:
            return link[0]
        return f"{link[1]}{posixpath.relpath(site_uri(target), here or '.')}{anchor}{link[3]}"

    pieces = _CODE.split(markdown)
    text = "".join(piece if number % 2 else _LINK.sub(moved, piece) for number, piece in enumerate(pieces))
    return _NEEDS.sub(r'<p class="needs">Needs \1.</p>\n\n', text)


def site_uri(origin: str) -> str:
    """The page or file of the site for a path in the repository."""
    if origin == "README.md":
        return "index.md"
    if origin.startswith("docs/"):
        return origin.removeprefix("docs/")
    if engine := _ENGINE_PAGE.fullmatch(origin):
        return f"engines/{engine['name']}/{engine['page']}"
    path = ROOT / origin
    if path.is_dir():
        return f"repository/{origin}/{'README' if is_markdown(path) else 'index'}.md"
    return f"repository/{origin}" if path.suffix in (".md", *_IMAGES) else f"repository/{origin}.md"


def page_text(path: Path) -> str:
    """The Markdown of a page for a file or a folder."""
    origin = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        if is_markdown(path):
            return (path / "README.md").read_text(encoding="utf-8")
        names = sorted(
            f"- `{child.name}{'/' * child.is_dir()}`" for child in path.iterdir() if child.name[0] not in "._"
        )
        return f"# {origin}/\n\n" + "\n".join(names) + "\n"
    text = path.read_text(encoding="utf-8")
    if is_markdown(path):
        return text
    return f"# {origin}\n\n````{_LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n````\n"


def is_markdown(path: Path) -> bool:
    """Whether the page of a path is written in Markdown, by us."""
    return path.suffix == ".md" or (path / "README.md").is_file()


def source_page(origin: str) -> str:
    """The file that the links on a page are relative to: of a folder its README."""
    return f"{origin}/README.md" if (ROOT / origin / "README.md").is_file() else origin


def links(path: Path) -> Iterator[tuple[str, str]]:
    """Targets of a Markdown file's links within the repository, with their anchors."""
    origin = source_page(path.relative_to(ROOT).as_posix())
    for piece in _CODE.split((ROOT / origin).read_text(encoding="utf-8"))[::2]:
        for link in _LINK.finditer(piece):
            target, anchor = resolve(origin, link[2])
            if target is not None:
                yield target, anchor


def resolve(origin: str, link: str) -> tuple[str | None, str]:
    """The path in the repository that a link leads to, None if it leads elsewhere or nowhere, and its anchor."""
    path, mark, anchor = link.partition("#")
    if not path or re.match(r"[a-z]+:", link):
        return None, ""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
    if target.startswith("..") or not (ROOT / target).exists():
        return None, ""
    # What is in docs/ is a page already, its folders have none.
    return target, mark + anchor
