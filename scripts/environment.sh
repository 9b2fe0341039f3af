# Sourced by demo.sh and test.sh. make_environment EXTRAS: .venv with this package (editable) and those extras.
# Does nothing when an earlier call did the same for the same pyproject.toml. PYTHON names the interpreter to start from.
# Python compiles what it imports: pip would first compile everything, for half of its time.

make_environment() {
    local extras=$1 stamp=".venv/.lingbot-world-${1//,/-}"
    if [ -x .venv/bin/python ] && [ "$stamp" -nt pyproject.toml ]; then
        return
    fi
    if [ ! -x .venv/bin/python ]; then
        say "making .venv with $(find_python); the first time it takes some minutes and gigabytes"
        "$(find_python)" -m venv .venv
    fi
    # torch alone first: the version that the goldens were checked with, and a CPU build where pip is set up for one.
    if ! .venv/bin/python -c "import torch" 2>/dev/null; then
        say "installing torch, by far the largest part"
        .venv/bin/python -m pip install --no-compile "torch==2.13.0"
    fi
    install_comfy_kitchen
    say "installing this package and what it needs ($extras)"
    .venv/bin/python -m pip install --no-compile --quiet --editable ".[$extras]"
    touch "$stamp"
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
