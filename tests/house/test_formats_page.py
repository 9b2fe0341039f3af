"""docs/formats.md is the page that the readers' lists make."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from lingbot_world.camera.formats import FORMATS

ROOT = Path(__file__).parents[2]


def test_the_page_is_made_from_the_readers_lists():
    spec = spec_from_file_location("make_formats_page", ROOT / "tools" / "formats" / "make_formats_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (ROOT / "docs" / "formats.md").read_text("utf-8")
    assert written == module.page(), "run python tools/formats/make_formats_page.py"
    assert all(f"`{name}`: " in written for name in FORMATS)
