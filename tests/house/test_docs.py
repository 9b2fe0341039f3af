"""Guards of the Markdown pages: links lead somewhere, named scripts exist, and the long pages stay short."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


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
