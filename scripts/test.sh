#!/usr/bin/env bash
# Makes .venv unless it is there, installs what the tests need and runs them, four files at a time, as browsers take
# turns, and servers and Ray are waited for; arguments go to pytest (-n 0 runs everything in one process).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
make_environment cli,live,spm,test
install_triton
unset PYTHONDONTWRITEBYTECODE # or every process compiles ComfyUI and this package anew
export OMP_NUM_THREADS=1 # toys are too small for more, and threads that wait for each other cost the most
exec .venv/bin/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder "$@"
