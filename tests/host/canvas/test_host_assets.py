"""The addresses of the canvas's scripts: an update of the pack is never answered from a browser's cache."""

from __future__ import annotations

import re
import urllib.error
import urllib.parse
import urllib.request

import pytest
from comfy_server import PACK_NAME, ComfyServer
from lingbot_world.version import __version__

pytestmark = pytest.mark.host

FOLDER = f"/extensions/{PACK_NAME}@{__version__}/"


def fetch(server: ComfyServer, address: str) -> tuple[str, str]:
    """A file's text and how long a browser may keep it."""
    with urllib.request.urlopen(server.url + address) as answer:
        return answer.read().decode("utf-8"), answer.headers["Cache-Control"]


@pytest.mark.parametrize("listing", ["/extensions", "/api/extensions"])
def test_the_pack_has_one_script_under_its_version(comfy_server, listing):
    addresses = comfy_server.get(listing)
    assert [address for address in addresses if PACK_NAME in address] == [FOLDER + "js/extension.js"]
    assert len(addresses) > 1, "the scripts of others are there"


def test_every_script_that_it_imports_is_under_the_version_too(comfy_server):
    begin = FOLDER + "js/extension.js"
    seen, waiting = set(), [begin]
    while waiting:
        address = waiting.pop()
        text, keep = fetch(comfy_server, address)
        assert keep == "no-cache", address
        for name in re.findall(r'(?:from|import) "(\.[^"]+)"', text):
            found = urllib.parse.urljoin(address, name)
            if not found.startswith("/scripts/"):
                assert found.startswith(FOLDER), (address, name)
                waiting += [] if found in seen else [found]
                seen.add(found)
    assert {FOLDER + "js/comfy/frontend.js", FOLDER + "live/view.mjs"} <= seen
    for name in ("js/editor.html", "js/editor.css", "live/index.html", "live/canvas.css"):
        assert fetch(comfy_server, FOLDER + name)[1] == "no-cache"


@pytest.mark.parametrize("name", ["../__init__.py", "%2e%2e/__init__.py", "js/../../pyproject.toml", "js", "none.js"])
def test_nothing_outside_is_served(comfy_server, name):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetch(comfy_server, FOLDER + name)
