"""Translations of the nodes: ComfyUI serves every text of every node in each language at /i18n, and no other. The help
pages that it serves use the same names."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator

import pytest
from comfy_server import PACK_NAME, ComfyServer
from comfy_tree import PACK

pytestmark = pytest.mark.host

LANGUAGES = ("ja", "zh")
KEPT = re.compile(r"`[^`]+`|(?<!\w)'[^']+'(?!\w)|--\w+|[\w/<>-]+\.(?:npy|npz|txt|json|pth|js)\b")
"""What stays as it is in every language: code, names of options, flags and files."""


def english(node: dict) -> Iterator[tuple[str, str]]:
    """Yield the key and the English text of everything that the canvas shows of a node."""
    yield "display_name", node["display_name"]
    yield "description", node["description"]
    for kind in ("required", "optional"):
        for name, spec in node["input"].get(kind, {}).items():
            yield f"inputs.{name}.name", spec[1].get("display_name") or name
            yield f"inputs.{name}.tooltip", spec[1]["tooltip"]
            if spec[1].get("control_after_generate"):
                yield "inputs.control_after_generate.name", "control after generate"
    for index, (name, tooltip) in enumerate(zip(node["output_name"], node["output_tooltips"] or [], strict=True)):
        yield f"outputs.{index}.name", name
        yield f"outputs.{index}.tooltip", tooltip


def flat(tree: dict | str, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the text of each leaf."""
    if isinstance(tree, str):
        yield key, tree
        return
    for name, branch in tree.items():
        yield from flat(branch, f"{key}.{name}" if key else name)


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+(?:[.,]\d+)*", text))


@pytest.fixture(scope="module")
def texts(comfy_server: ComfyServer) -> dict[str, str]:
    nodes = comfy_server.object_info().items()
    return {
        f"{name}.{key}": text for name, node in nodes if name.startswith("LingBotWorld") for key, text in english(node)
    }


@pytest.fixture(scope="module", params=LANGUAGES)
def language(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def translated(comfy_server: ComfyServer, language: str) -> dict[str, str]:
    with urllib.request.urlopen(f"{comfy_server.url}/i18n") as answer:
        definitions = json.load(answer)[language]["nodeDefs"]
    return dict(flat({name: node for name, node in definitions.items() if name.startswith("LingBotWorld")}))


def test_no_key_is_missing_and_none_is_left_over(texts, translated):
    lacking = {key: texts[key] for key in texts if not translated.get(key, "").strip()}
    assert lacking == {}, "keys without a translation: write them into locales/<language>/nodeDefs.json"
    assert sorted(set(translated) - set(texts)) == [], "keys of no text: delete them"


def test_numbers_and_names_of_files_and_options_agree(texts, translated):
    wrong = {}
    for key in set(texts) & set(translated):
        there, here = numbers(texts[key]), numbers(translated[key])
        lost = there - here | {name for name in KEPT.findall(texts[key]) if name not in translated[key]}
        made = {number for number in here - there if number not in "1234"}  # a language may write "two" as 2
        if lost or made:
            wrong[key] = (sorted(lost), sorted(made))
    assert wrong == {}


def test_every_sentence_is_translated(texts, translated):
    same = [key for key, text in translated.items() if " " in texts.get(key, "") and text == texts[key]]
    assert same == []


def bold(text: str) -> list[str]:
    return re.findall(r"\*\*(.+?)\*\*", text)


def test_help_pages_name_inputs_and_outputs_as_the_nodes_do(comfy_server, language, texts, translated):
    """The front-end asks for this address before it asks for the English page."""
    wrong = {}
    for page in (PACK / "web/docs").glob("*.md"):
        with urllib.request.urlopen(
            f"{comfy_server.url}/extensions/{PACK_NAME}/docs/{page.stem}/{language}.md"
        ) as answer:
            assert "html" not in answer.headers["Content-Type"]  # which the front-end takes for a missing page
            there = bold(answer.read().decode("utf-8"))
        here = bold(page.read_text(encoding="utf-8"))
        keys = [key for key in texts if key.startswith(f"{page.stem}.") and key.endswith(".name")]
        for name in {texts[key] for key in keys}:
            names = {translated[key] for key in keys if texts[key] == name}
            if sum(map(there.count, names)) < here.count(name):
                wrong[f"{page.stem}: {name}"] = names
    assert wrong == {}


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_language_has_the_same_files_as_the_others(language):
    folders = {name: {file.name for file in (PACK / "locales" / name).iterdir()} for name in ("en", *LANGUAGES)}
    assert folders[language] == folders["en"] | {"nodeDefs.json"}
    for file in (PACK / "locales" / language).iterdir():
        json.loads(file.read_text(encoding="utf-8"))
