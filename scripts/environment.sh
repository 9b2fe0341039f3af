# Sourced by demo.sh and test.sh. make_environment EXTRAS: .venv with this package (editable) and those extras.
# Does nothing when an earlier call did the same for the same pyproject.toml. PYTHON names the interpreter to start from.
# Python compiles what it imports: pip would first compile everything, for half of its time. uv installs the many
# packages in a fifth of pip's time; pip does what uv cannot, as it may be set up for packages of a place of its own.

make_environment() {
    local extras=$1 stamp=".venv/.lingbot-world-${1//,/-}"
    if [ -x .venv/bin/python ] && [ "$stamp" -nt pyproject.toml ]; then
        return
    fi
    if [ ! -x .venv/bin/python ]; then
        say "making a virtual environment in .venv with $(find_python); your other Python packages stay as they are"
        "$(find_python)" -m venv .venv
    fi
    install_torch
    install_comfy_kitchen
    say "installing this package and what it needs ($extras)"
    .venv/bin/uv pip install --quiet --python .venv/bin/python --editable ".[$extras]" 2>/dev/null ||
        .venv/bin/python -m pip install --no-compile --quiet --editable ".[$extras]"
    touch "$stamp"
}

# The version that the goldens were checked with. PyPI's torch for Linux needs 6 GB of CUDA libraries, of no use without
# an NVIDIA GPU. uv knows where PyTorch keeps its CPU builds; pip does too where it is set up for them.
install_torch() {
    if .venv/bin/python -c "import torch" 2>/dev/null; then
        return
    fi
    if [ "$(uname)" = Linux ] && ! command -v nvidia-smi >/dev/null; then
        say "no NVIDIA GPU here: installing the CPU build of torch, 0.2 GB"
        if .venv/bin/python -m pip install --quiet uv &&
            .venv/bin/uv pip install --quiet --python .venv/bin/python --torch-backend cpu "torch==2.13.0"; then
            return
        fi
        say "that did not work; pip installs the torch that it finds. If it begins to fetch nvidia-* packages, these are"
        say "6 GB: press Ctrl-C, install torch into .venv as PyTorch's own page says for CPU, and start again"
    else
        say "installing torch; on Linux pip fetches 6 GB of CUDA libraries with it"
    fi
    .venv/bin/python -m pip install --no-compile "torch==2.13.0"
}

say() {
    echo "==> $*" >&2
}

find_python() {
    local name
    for name in "${PYTHON:-python3.11}" python3.12 python3.13 python3.10 python3; do
        if "$name" -c "import venv, sys; sys.exit(sys.version_info < (3, 10))" 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    echo "Python 3.10 or newer is needed; name one with PYTHON=/path/to/python" >&2
    return 1
}

# Without a GPU the pure Python wheel serves and saves 190 MB.
install_comfy_kitchen() {
    if command -v nvidia-smi >/dev/null || .venv/bin/python -c "import comfy_kitchen" 2>/dev/null; then
        return
    fi
    local wheels
    wheels=$(mktemp -d)
    if .venv/bin/python -m pip download --quiet --dest "$wheels" --platform any --only-binary=:all: --no-deps \
        comfy-kitchen; then
        .venv/bin/python -m pip install --no-compile --quiet "$wheels"/comfy_kitchen-*.whl
    fi
    rm -rf "$wheels"
}

# For tests/model/test_model_kernels.py, where torch brings no Triton. In a folder of its own, as other packages import
# a Triton that they find.
install_triton() {
    if [ "$(uname)" != Linux ] || [ -d .venv/triton ] || .venv/bin/python -c "import triton" 2>/dev/null; then
        return
    fi
    say "installing Triton into .venv/triton, 0.3 GB: two tests compile its kernels"
    .venv/bin/python -m pip install --no-compile --no-deps --quiet --target .venv/triton "triton==3.9.0" ||
        say "that did not work: these two tests are skipped"
}
