#!/usr/bin/env bash
# Makes .venv unless it is there, installs what the tests need and runs them; arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
make_environment cli,spm,test
exec .venv/bin/python -m pytest "$@"
