"""The repository as a package: what importing costs, what its files may say, what its scripts stand on."""

import re
import subprocess
import sys
from pathlib import Path

import lingbot_world
import pytest
from source_files import calls, imports, python_files

ROOT = Path(lingbot_world.__file__).parent
SHIPPED = python_files("tests", "tools", "build", "out")
TRAINING = sorted(path for path in (ROOT / "tools" / "toy").glob("*.py"))
ENGINE = [path for path in SHIPPED if path.relative_to(ROOT).parts[0] not in ("host", "nodes")] + TRAINING


OFFERED = """
from typing_extensions import assert_type

from lingbot_world import GenerateOptions, camera_embedding, generate, load_expert, sample
from lingbot_world.headless.run import Result
from torch import Tensor

options = GenerateOptions(ckpt_dir="", image="", prompt="", output="", solver="dpmpp", residency="one")
assert_type(generate(options), Result)
GenerateOptions(ckpt_dir="", image="", prompt="", output="", solver="euler")  # type: ignore[arg-type]
GenerateOptions("", "", "", "")  # type: ignore[call-arg]
sample(1)  # type: ignore[call-arg,arg-type]
camera_embedding()  # type: ignore[call-arg]
load_expert()  # type: ignore[call-arg]
"""
"""What a type checker has to see; a comment that ignores nothing is an error too."""


def dotted(path):
    """lingbot_world.model.dit of model/dit.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("lingbot_world", *(part for part in parts if part != "__init__")))


def run(code, *arguments):
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_importing_the_package_is_cheap_and_brings_nothing_along():
    listing = "import sys; before = set(sys.modules); import {}; print(*set(sys.modules) - before)"
    loaded = set(run(listing.format("lingbot_world")).split())
    assert {name for name in loaded if name.startswith("lingbot_world")} == {"lingbot_world", "lingbot_world.version"}
    assert {name.split(".")[0] for name in loaded} <= {"lingbot_world", "__editable__"} | sys.stdlib_module_names
    loaded = {name.split(".")[0] for name in run(listing.format("lingbot_world.headless.command.cli")).split()}
    assert loaded <= {"lingbot_world"} | sys.stdlib_module_names


PARTS = {
    "camera": "camera.track",
    "loaders": "loaders.load quantize.writer loaders.checkpoint loaders.package",
    "all": "pipeline sampling model.dit text headless.plan headless.process.profile headless.files.video vae",
}


APART = "bench_nodes", "tensor_cores"  # need ComfyUI and Triton

IMPORTS = """
import importlib, sys
folders, *parts, last = sys.argv[1:]
for part in parts:
    for name in part.split():
        importlib.import_module("lingbot_world." + name)
    print(*sys.modules)
sys.path[:0] = folders.split()
tools = [importlib.import_module(name) for name in last.split()]
print(*sys.modules)

import ast, inspect, types
for tool in tools:
    for node in ast.walk(ast.parse(inspect.getsource(tool))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = vars(tool).get(node.value.id)
            if isinstance(owner, types.ModuleType) and not hasattr(owner, node.attr):
                print(tool.__name__, node.value.id, node.attr, sep=".", end=" ")
print()
"""


@pytest.fixture(scope="module")
def imported():
    """Return the modules after the import of each of PARTS and of all tools but APART in one process, and errors."""
    folders = [ROOT / "tools" / name for name in ("bench", "cards", "pictures", "workflows")]
    names = [path.stem for folder in folders for path in sorted(folder.glob("*.py")) if path.stem not in APART]
    parts = PARTS | {"tools": " ".join(names)}
    command = [sys.executable, "-c", IMPORTS, " ".join(map(str, folders)), *parts.values()]
    done = subprocess.run(command, capture_output=True, text=True)
    told = [*parts, "names that are not there"]
    modules = {part: set(line.split()) for part, line in zip(told, done.stdout.splitlines(), strict=False)}
    return modules | {"errors": done.stderr}


@pytest.mark.parametrize(
    ("part", "heavy"),
    [
        ("camera", {"scipy"}),
        ("loaders", {"bitsandbytes", "comfy_kitchen"}),
        ("all", {"bitsandbytes", "comfy_kitchen", "av", "tokenizers", "sentencepiece"}),
    ],
)
def test_the_engine_imports_heavy_packages_only_when_it_needs_them(imported, part, heavy):
    """torch's compiler takes longer than the rest of torch."""
    assert part in imported, imported["errors"]
    assert not (heavy | {"torch._dynamo"}) & imported[part]
    assert "torch" in imported[part]


def test_no_test_file_imports_torchs_compiler_as_it_is_collected():
    """Every process that runs tests collects all files; tests/conftest.py names those that import the compiler."""
    names = r"(comfy_kitchen|bitsandbytes|torch\._dynamo)\b"
    heavy = re.compile(rf'^(import |from |\w.*importorskip\("){names}', re.MULTILINE)
    files = (ROOT / "tests").rglob("test_*.py")
    assert [path.name for path in files if heavy.search(path.read_text(encoding="utf-8"))] == []


def test_an_export_without_points_and_a_list_of_walks_need_no_torch():
    parts = ("export", "camera.formats.files", "headless.files.pictures", "headless.live.saved_walks")
    loaded = run(f"import sys, {', '.join(f'lingbot_world.{part}' for part in parts)}\nprint(*sys.modules)").split()
    assert "torch" not in loaded


HELP = "import lingbot_world.headless.command.cli as c\ntry: c.main([{}])\nexcept SystemExit: pass"


def test_help_needs_no_torch():
    assert "generate" in run(HELP.format("'--help'"))
    loaded = run("import sys, lingbot_world.headless.command.cli as c\nc.build_parser()\nprint(*sys.modules)").split()
    assert "torch" not in loaded


def test_files_are_plain_ascii_without_what_scanners_refuse():
    for path in SHIPPED:
        text = path.read_text(encoding="utf-8")
        assert text.isascii(), path
        for refused in ("nn.Linear", "nn.LayerNorm", ".cuda", "torch.autocast"):
            assert f"{refused}(" not in text, (path, refused)
        for refused in ("subprocess", "os.system"):
            assert refused not in text, (path, refused)
        assert not {"eval", "exec", "__import__"} & {name for name, _ in calls(path)}, path


ANSWERING = {
    f"host/{name}.py" for name in ("files/drawing", "files/uploads", "installed", "prompt/queue", "sampling/live_route")
}
LIVE = {*(f"headless/live/{name}.py" for name in ("running", "serving", "measuring")), "live/wire/connection.py"}


def test_no_file_opens_a_connection_or_unpickles():
    """`lingbot-world queue` alone talks to a server, the one that the user names: only its two files may. Of aiohttp,
    what answers ComfyUI's canvas uses the classes of requests and answers. `lingbot-world live` is a server:
    one file has it listen, one answers, and one is a client that measures it."""
    refused = {"socket", "ssl", "urllib", "http", "ftplib", "requests", "aiohttp", "httpx", "huggingface_hub", "pickle"}
    allowed = dict.fromkeys(("headless/client/queue.py", "headless/client/server.py"), {"urllib", "http"})
    allowed |= dict.fromkeys(ANSWERING, {"aiohttp"}) | dict.fromkeys(LIVE, {"aiohttp", "urllib"})
    for path in SHIPPED:
        used = {module for level, module in imports(path) if level == 0} - {"urllib.parse"}  # it only writes text
        found = {module.split(".")[0] for module in used} & refused
        assert found <= allowed.get(path.relative_to(ROOT).as_posix(), set()), path


def test_only_the_queue_command_reaches_the_files_that_talk_to_a_server():
    headless = [path for path in SHIPPED if path.relative_to(ROOT).parts[0] == "headless"]
    importers = {
        path.relative_to(ROOT).as_posix()
        for path in headless
        for level, module in imports(path)
        if level and module.split(".")[-1] in ("queue", "server")
    }
    assert importers == {"headless/command/cli.py", "headless/client/queue.py"}


def test_the_command_runs_from_a_folder_of_any_name(tmp_path):
    (tmp_path / "comfyui-lingbot.world").symlink_to(ROOT, target_is_directory=True)
    command = [sys.executable, "-I", tmp_path / "comfyui-lingbot.world", "queue", ROOT / "workflows/api/toy.json"]
    done = subprocess.run([*command, "--list"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Load LingBot-World Experts" in done.stdout


def test_the_engine_knows_no_host():
    for path, (level, module) in ((file, each) for file in ENGINE for each in imports(file)):
        top = module.split(".")[0]
        assert level > 0 or not top.startswith("comfy") or top == "comfy_kitchen", (path, module)
        assert level == 0 or top not in ("host", "nodes") or path == ROOT / "__init__.py", (path, module)


def test_the_engine_knows_no_front():
    """Besides headless/ itself only the doors of the package and the command, and gymnasium's environment, know it."""
    importers = {
        path.relative_to(ROOT).parts[0]
        for path in SHIPPED
        for _, module in imports(path)
        if "headless" in module.split(".")
    }
    assert importers - {"headless"} == {"__init__.py", "__main__.py", "gym"}


@pytest.mark.parametrize("folder", ["model", "camera", "sampling"])
def test_these_folders_import_no_sibling(folder):
    for path in (ROOT / folder).rglob("*.py"):
        outside = len(path.relative_to(ROOT).parts)  # dots of an import that leaves the folder
        found = {module for level, module in imports(path) if level == outside}
        assert found <= {"errors", "fields", "options", "outputs", "typed"}, path


def test_the_training_of_the_toy_is_not_shipped():
    assert TRAINING
    assert "/tools/" in (ROOT / ".comfyignore").read_text().split()
    assert not {
        path
        for path in SHIPPED
        for level, module in imports(path)
        if (level and module.split(".")[0] == "tools") or module.startswith("lingbot_world.tools")
    }


def test_ruff_finds_nothing(tmp_path):
    """A link gives the folder the package's name: as `git clone` calls it, it is none that ruff takes."""
    pytest.importorskip("ruff")
    (tmp_path / "lingbot_world").symlink_to(ROOT, target_is_directory=True)
    command = [sys.executable, "-m", "ruff", "check", "lingbot_world/"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_finds_nothing_and_knows_what_the_package_offers(tmp_path):
    """A link gives the folder the package's name. What mypy learns of torch is kept for the next run."""
    pytest.importorskip("mypy")
    (tmp_path / "lingbot_world").symlink_to(ROOT, target_is_directory=True)
    (tmp_path / "offered.py").write_text(OFFERED)
    example = (ROOT / "docs/python.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    (tmp_path / "documented.py").write_text(example)
    modules = [word for path in ENGINE for word in ("-m", dotted(path))]
    settings = ["--config-file", ROOT / "pyproject.toml", "--cache-dir", ROOT / ".mypy_cache"]
    command = [sys.executable, "-m", "mypy", *settings, *modules, "-m", "offered", "-m", "documented"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_tool_can_be_imported(imported):
    """Most need a GPU, so that nothing else here runs them: what they take of a module has to be there."""
    assert "tools" in imported, imported["errors"]
    assert "bench_gpu" in imported["tools"]
    assert imported["names that are not there"] == set()


def test_requirements_are_the_dependencies_and_every_folder_is_packaged():
    project = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text())
    assert (ROOT / "requirements.txt").read_text().split() == project["project"]["dependencies"]
    assert project["project"]["version"] == lingbot_world.__version__
    folders = {
        f"lingbot_world.{path.parent.relative_to(ROOT).as_posix().replace('/', '.')}"
        for path in SHIPPED
        if path.name == "__init__.py" and path.parent != ROOT
    }
    assert folders | {"lingbot_world"} == set(project["tool"]["setuptools"]["packages"])


def test_the_readme_names_commands_and_files_that_exist():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in ("bash scripts/demo.sh", "bash scripts/test.sh", "hf download", "lingbot-world generate"):
        assert command in readme, command
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", readme):
        assert (ROOT / target).exists(), target
    help_text = run(HELP.format("'generate', '-h'"))
    block = readme[readme.index("lingbot-world generate") :].split("```")[0]
    options = set(re.findall(r"--\w+", block))
    assert options
    assert options <= set(re.findall(r"--\w+", help_text))
    assert "scripts/test.sh" in (ROOT / ".ci/run").read_text()
