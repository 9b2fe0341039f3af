"""Guards of the Markdown pages: links lead somewhere, named scripts exist, the long pages stay short, and the help
pages of the nodes have the same structure in each language."""

import json
import re
from functools import cache
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
HELP = {page.stem: page for page in (ROOT / "web" / "docs").glob("*.md")}
LANGUAGES = {
    language: json.loads((ROOT / "locales" / language / "nodeDefs.json").read_text(encoding="utf-8"))
    for language in ("ja", "zh")
}
MARKDOWN = MarkdownIt("commonmark").enable("table")
QUOTED = "[\u300c\u201c]([^\u300c\u300d\u201c\u201d]*)[\u300d\u201d]"  # what stands in Japanese or Chinese quotes


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        name, _, heading = link.partition("#")
        target = (page.parent / name) if name else page
        if link.startswith("http"):
            continue
        if not target.exists() or (heading and target.suffix == ".md" and heading not in anchors(target)):
            dead.append(link)
    assert dead == []


def test_commands_may_be_pasted_into_any_shell():
    """zsh expands a bare * and takes a # at a line's end for an argument, as Windows does."""
    pages = [page for page in PAGES if page.parent.name != "lab" and page.name != "benchmarks.md"]
    blocks = [each for page in pages for each in re.findall(r"```ba[st]h?\n(.*?)```", page.read_text("utf-8"), re.S)]
    lines = [re.sub("\"[^\"]*\"|'[^']*'", "", line) for block in blocks for line in block.splitlines()]
    assert len(lines) > 40
    assert [line for line in lines if re.search(r"\S\s+#|[*\[]", line)] == []


def test_the_benchmarks_are_one_table_whose_scripts_exist():
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    scripts = re.findall(r"tools/bench/\w+\.py", text)
    assert len(text.splitlines()) <= 80
    assert scripts
    assert [each for each in scripts if not (ROOT / each).exists()] == []


def test_each_version_of_the_changelog_is_short_and_the_newest_is_this_one():
    parts = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.M)[1:]
    names = [part.split("]")[0].strip("[") for part in parts]
    assert [name for name, part in zip(names, parts, strict=True) if len(part.splitlines()) > 40] == []
    version = re.findall(r'__version__ = "(.*)"', (ROOT / "version.py").read_text(encoding="utf-8"))
    assert [name for name in names if name != "Unreleased"][:1] == version


@cache
def parse(page: Path) -> list[Token]:
    """Return the blocks of a page. One of type "inline" has the text of a heading, paragraph or cell, and its spans."""
    return MARKDOWN.parse(page.read_text(encoding="utf-8"))


def spans(page: Path) -> list[Token]:
    return [span for block in parse(page) for span in block.children or ()]


@cache
def structure(page: Path) -> dict[str, list[str]]:
    """Return everything that a translation keeps. Words may change their order in a sentence, blocks may not."""
    numbers = re.findall(r"\d+(?:[.,]\d+)*", page.read_text(encoding="utf-8"))
    return {
        "blocks": [each.type + each.tag for each in parse(page)],
        "code": sorted(each.content for each in spans(page) if each.type == "code_inline"),
        "links and images": sorted(str(each.attrs) for each in spans(page) if each.type in ("link_open", "image")),
        "bold": [each.type for each in spans(page) if each.type == "strong_open"],
        "numbers": sorted(set(numbers)),
    }


def lost(english: Path, translation: Path) -> list[str]:
    """Return the parts of the structure that differ. A translation may write the English "two" as 2."""
    here, there = dict(structure(translation)), structure(english)
    here["numbers"] = [number for number in here["numbers"] if number in there["numbers"]]
    return [part for part in there if here[part] != there[part]]


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_help_page_is_translated_with_its_structure(language):
    pages = {name: page.with_suffix("") / f"{language}.md" for name, page in HELP.items()}
    assert sorted((ROOT / "web" / "docs").glob(f"*/{language}.md")) == sorted(pages.values())
    assert {name: parts for name, page in pages.items() if (parts := lost(HELP[name], page))} == {}


@pytest.mark.parametrize("language", LANGUAGES)
def test_translations_name_nodes_as_the_canvas_does(language):
    nodes, pages = LANGUAGES[language], [HELP[name].with_suffix("") / f"{language}.md" for name in HELP]
    titles = {page.parent.name: page.read_text(encoding="utf-8").splitlines()[0] for page in pages}
    assert titles == {name: f"# {nodes[name]['display_name']}" for name in HELP}
    texts = [page.read_text(encoding="utf-8") for page in pages] + [json.dumps(nodes, ensure_ascii=False)]
    quoted = {name for text in texts for name in re.findall(QUOTED, text) if "LingBot-World" in name}
    assert quoted - {node["display_name"] for node in nodes.values()} == set()


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_sentence_of_a_help_page_is_translated_and_renders(language):
    """A browser shows a line end inside a paragraph as a space, and Markdown ignores some stars next to punctuation."""
    faults = []
    for english in HELP.values():
        page = english.with_suffix("") / f"{language}.md"
        sentences = {block.content for block in parse(english) if " " in block.content}
        faults += [block.content for block in parse(page) if block.content in sentences]
        faults += [f"{page}: {each}" for each in spans(page) if each.type == "softbreak" or "**" in each.content]
    assert faults == []
