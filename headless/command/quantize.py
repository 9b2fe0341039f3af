"""The commands `lingbot-world quantize`, which makes smaller weight files, and `lingbot-world verify`, which checks
files."""

import argparse
from functools import partial
from typing import Any

from ...options import BLOCK_SIZES, QUANTIZE_FORMATS, ShowProgress
from ..options import LORA, parse_lora
from .flags import parse_path


def add_quantize_command(commands: Any, show: ShowProgress) -> None:
    parser = commands.add_parser("quantize", help="make a 4-bit or fp8 package out of official weights")
    parser.set_defaults(run=lambda arguments: _quantize(arguments, show))
    add = parser.add_argument
    place = partial(add, type=parse_path)
    place("source", help="a package, a model's folder or file (safetensors, .pth), or a text encoder's file")
    place("dest", help="the folder to make; after a stop the same command continues")
    about = "4-bit weights, or float8, int8 or nvfp4 that ComfyUI's own loaders read too; a text encoder is always "
    add("--format", default="nf4", choices=QUANTIZE_FORMATS, help=about + "4-bit (default: nf4)")
    about = "search for the best scales: 9 %% less error at the same size, several times the time"
    add("--search", action="store_true", help=about)
    add("--t5", action="store_true", help="quantize the package's text encoder too: 11.4 GB become 3.2 GB")
    several = partial(add, nargs="+", default=[], action="extend")
    several("--keep", metavar="LAYER", help="linear layers that stay bf16, such as head.head or blocks.0.*")
    several("--lora", type=parse_lora, metavar=LORA, help="LoRAs to merge into the weights first")
    add("--blocksize", "--block_size", type=int, default=64, choices=BLOCK_SIZES, help="values per scale (default: 64)")
    place("--assets_dir", metavar="FOLDER", help="folder with T5, tokenizer and VAE for the package")
    add("--device", metavar="NAME", help="left out: the GPU if there is one")


def add_verify_command(commands: Any, show: ShowProgress) -> None:
    parser = commands.add_parser("verify", help="check a package's files against their checksums")
    parser.set_defaults(run=lambda arguments: _verify(arguments, show))
    parser.add_argument("package", type=parse_path, help="a package's folder, a model or a text encoder")
    parser.add_argument("--fast", action="store_true", help="check only headers, shapes and scales")


def _quantize(arguments: argparse.Namespace, show: ShowProgress) -> None:
    from ...quantize import QuantizeOptions, plan_quantize, quantize, report
    from ..devices import find_device

    options = QuantizeOptions(
        search=arguments.search,
        keep=tuple(arguments.keep),
        blocksize=arguments.blocksize,
        t5=arguments.t5,
        loras=tuple(arguments.lora),
        device=str(find_device(arguments.device)),
        assets=arguments.assets_dir,
        format=arguments.format,
    )
    plan = plan_quantize(arguments.source, arguments.dest, options)
    for note in plan.notes:
        print(note)
    try:
        metas = quantize(plan, show)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(f"the same command continues from {plan.unfinished}") from error
    for file, meta in metas.items():
        print(f"\n{report(file, meta)}")
    print(f"\n{plan.destination}")


def _verify(arguments: argparse.Namespace, show: ShowProgress) -> None:
    from ...quantize import verify

    for found in verify(arguments.package, show, arguments.fast):
        checked = "no checksums to compare with" if found.checked is None else f"{found.checked} checksums agree"
        checked = "header and scales only" if arguments.fast else checked
        print(f"{found.path}: {found.kind}; {found.tensors} tensors, {checked}")
