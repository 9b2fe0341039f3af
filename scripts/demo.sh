#!/usr/bin/env bash
# A video with a camera path from tiny random models, on the CPU, in a minute or two: shows that everything works here.
# Needs Python 3.10 or newer and PyPI; makes .venv unless it is there. Further arguments go to `lingbot-world generate`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
make_environment cli

.venv/bin/lingbot-world toy out/toy
.venv/bin/lingbot-world generate \
    --ckpt_dir out/toy \
    --image out/toy/example/image.png \
    --prompt "$(cat out/toy/example/prompt.txt)" \
    --action_path out/toy/example \
    --size 240*416 --frame_num 17 --sampling_steps 6 --seed 1 --device cpu \
    --output "$PWD/out/demo.mp4" "$@"
