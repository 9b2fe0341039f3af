"""Shared fixtures. `golden` holds outputs of the official implementation (see tests/golden/README.md)."""

import gc
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from comfy_server import comfy_base, comfy_host, comfy_server  # noqa: F401
from filelock import FileLock

HERE = Path(__file__).parent
BESIDE = HERE.parent.parent / "shared"
os.environ["LINGBOT_WORLD_TIMES"] = ""  # what runs take is not kept
os.environ["LINGBOT_WORLD_PROMPTS"] = ""  # nor is what prompts become
os.environ["LINGBOT_WORLD_CARDS"] = ""  # nor what a card's kernels were found to do
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")  # else torch's compiler tries each of the CPU's for 13 s


BROWSER = (
    "test_web.py",
    "test_host_workflows.py",
    "test_host_front_end.py",
    "test_host_server_models.py",
    "test_host_blueprints.py",
)
"""Files that draw in a browser, which one process after the other may (browser_runner.py)."""
SCRIPTS = (
    "test_host_guider.py",
    "test_host_rollout.py",
    "test_host_cache.py",
    "test_host_lora.py",
    "test_host_arithmetic.py",
    "test_host_combinations.py",
    "test_host_node_rules.py",
)
"""Files whose checks run in one interpreter with ComfyUI in it (host_runner.py)."""
APART = ("test_host_server_start.py", "test_host_text.py", "test_host_model.py", "test_host_files.py")
"""Files of tests/host that start what they need; all others that are not in BROWSER or SCRIPTS share a server."""
COMPILER = ["test_model_compile.py", "test_model_accuracy.py", "test_model_eight_bit.py", "test_vae_memory.py"]
COMPILER += ["test_model_eight_bit_attention.py", "test_loader_experts.py", "test_loader_checkpoint.py", "test_nf4.py"]
COMPILER += ["test_comfy_formats.py", "test_own_format.py", "test_vae_convolution.py", "test_choice.py", "test_fuzz.py"]
COMPILER += ["test_loader_damage.py", "test_quantize_writer.py", "test_quantize.py", "test_rotation.py"]
"""Files that import torch's compiler, which takes seconds: by itself, with bitsandbytes or comfy-kitchen, or to count
bytes. Only their tests import it: otherwise every process would, as it collects."""
LONG = ["test_live_browser.py", *COMPILER, *(HERE / "data/long_files.txt").read_text().split()]
"""Files that take long without ComfyUI, the longest first: of the others none takes 7 s."""


def _place(item: pytest.Item) -> tuple[int, int]:
    name, host = item.path.name, item.get_closest_marker("host") is not None
    kind = [name in BROWSER, name in SCRIPTS, host, name in LONG, True].index(True)
    return kind, LONG.index(name) if name in LONG else 0


def _parameters(item: pytest.Item) -> list[object]:
    return [
        value for value in getattr(getattr(item, "callspec", None), "params", {}).values() if isinstance(value, str)
    ]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark each test that needs a GPU as `gpu`: `pytest -m gpu` runs them all."""
    reasons = [mark.kwargs.get("reason", "") for mark in item.iter_markers("skipif")]
    if any("GPU" in reason or "CUDA device" in reason for reason in reasons) or "cuda" in _parameters(item):
        item.add_marker(pytest.mark.gpu)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long first; short files fill up the processes' ends."""
    items.sort(key=_place)


@pytest.fixture(scope="module", autouse=True)
def _short_collections() -> None:
    """Garbage collections in a file's tests pass over what is there before, which no longer changes. A run collects at
    the end of every stage: with torch's modules and thousands of tests that takes 0.3 s, more than a stage of the toy.
    """
    gc.collect()  # or garbage would stay
    gc.freeze()


@pytest.fixture
def usual_signals() -> Iterator[None]:
    """Ctrl-C and hanging up do what they do in a terminal, here and in processes that a test starts, though the tests
    themselves may run in the background or behind nohup, where they are ignored."""
    usual = {"SIGINT": signal.default_int_handler, "SIGTERM": signal.SIG_DFL, "SIGHUP": signal.SIG_DFL}
    numbers = {getattr(signal, name): handler for name, handler in usual.items() if hasattr(signal, name)}
    before = {number: signal.signal(number, handler) for number, handler in numbers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """With `--dist loadfile`, files that would wait for each other or that share a process go to one."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = Path(super()._split_scope(nodeid))
            own = str(file) if file.name in APART or "host" not in file.parts else "host"
            return next((names[0] for names in (BROWSER, SCRIPTS, COMPILER) if file.name in names), own)

    return Together(config, log)


@pytest.fixture(scope="session")
def golden() -> Path:
    """The official implementation's inputs and outputs that travel with the repository."""
    return HERE / "golden"


@pytest.fixture
def beside_config(golden, tmp_path):
    """A folder with the config.json that tells the golden models' number of heads."""
    shutil.copy(golden / "nf4/high_noise_model_bnb_nf4/config.json", tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def toy_package(tmp_path_factory) -> Path:
    """Tiny random models of every kind, an image and a camera path; nobody writes into it."""
    from lingbot_world.toy import write_toy_package

    return _made_once(tmp_path_factory, write_toy_package)


@pytest.fixture(scope="session")
def toy_world(tmp_path_factory) -> Path:
    """The trained toy package; nobody writes into it."""
    from lingbot_world.toy import write_toy_world

    return _made_once(tmp_path_factory, write_toy_world)


def _made_once(factory: pytest.TempPathFactory, write: Callable[[Path], Path]) -> Path:
    """Return the folder that one of the processes of a run has written for all."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / write.__name__
    complete = Path(f"{folder}.complete")
    with FileLock(f"{folder}.lock"):
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            write(folder)
            complete.touch()
    return folder


@pytest.fixture
def command(toy_package, tmp_path):
    """Arguments for `generate` on the toy package at its smallest; keywords replace options, None drops one."""

    def build(**changes):
        options = {
            "ckpt_dir": toy_package,
            "image": toy_package / "example/image.png",
            "prompt": "a castle",
            "action_path": toy_package / "example",
            "width": 48,
            "height": 32,
            "frame_num": 5,
            "sampling_steps": 2,
            "seed": 1,
            "device": "cpu",
            "output": tmp_path / "out" / "video.mp4",
        } | changes
        given = {name: value for name, value in options.items() if value is not None}
        return ["generate", *(word for name, value in given.items() for word in (f"--{name}", str(value)))]

    return build


@pytest.fixture
def causal(toy_package, tmp_path):
    """`causal(...)`: the options of a small run of the toy's causal model, of the test's own."""
    from rollout_run_cases import small_options

    return partial(small_options, toy_package, tmp_path)


@pytest.fixture
def second_release(toy_package, tmp_path):
    """The toy's causal model in a folder with the name of 2.0."""
    return _toy_release(toy_package, tmp_path / "lingbot-world-v2-toy")


@pytest.fixture
def pretrain(toy_package, tmp_path):
    """The toy's causal model in a folder with the name of causal-pretrain."""
    return _toy_release(toy_package, tmp_path / "lingbot-world-v2-toy-causal-pretrain")


def _toy_release(toy_package: Path, folder: Path) -> Path:
    shutil.copytree(toy_package / "lingbot_world_fast", folder / "model")
    for name in ("tokenizer", "models_t5_umt5-xxl-enc-bf16.pth", "Wan2.1_VAE.pth"):
        (folder / name).symlink_to(toy_package / name)
    return folder


@pytest.fixture(scope="session")
def example00() -> Path:
    """A real image with a real camera path; lies beside the repository on developers' machines only."""
    folder = BESIDE / "examples" / "00"
    if not folder.is_dir():
        pytest.skip("the official example 00 is not beside this checkout")
    return folder


@pytest.fixture
def one_thread():
    """One thread for many small operations."""
    import torch  # here, as most of those who read this file have no use for it

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
