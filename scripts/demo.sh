#!/usr/bin/env bash
# A walk through a door by tiny trained models, on the CPU, in a minute or so. MOVE=pan_left bash scripts/demo.sh asks
# for another camera move: the names are those of `lingbot-world camera make --preset`.
# Needs Python 3.10 or newer and PyPI; makes a virtual environment, .venv, unless it is there: 1 GB without an NVIDIA GPU,
# 7 GB with one. Further arguments go to `lingbot-world generate`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
make_environment cli,live
if [ -n "${MOVE:-}" ]; then
    path="out/$MOVE" frames=33
else
    path=out/maze/example frames=97
fi

say "tiny models, an image, a prompt and a path, into out/maze"
.venv/bin/lingbot-world toy out/maze
if [ -n "${MOVE:-}" ]; then
    say "the camera's path, $MOVE"
    case $MOVE in pan_* | tilt_* | roll_*) amount=25 ;; *) amount=2 ;; esac
    .venv/bin/lingbot-world camera make --preset "$MOVE" --amount $amount --frames $frames --overwrite "$path"
fi
say "the drawing of the path"
.venv/bin/lingbot-world camera show "$path" --image out/maze/example/image.png --output out/demo-camera.png --overwrite
say "the video, $frames frames on the CPU"
.venv/bin/lingbot-world generate \
    --ckpt_dir out/maze/lingbot_world_fast \
    --image out/maze/example/image.png \
    --prompt "$(cat out/maze/example/prompt.txt)" \
    --action_path "$path" \
    --width 256 --height 144 --frame_num $frames --chunk 1 --window 18 --sink 6 --schedule 0 --seed 1 \
    --device cpu --overwrite \
    --output "$PWD/out/demo.mp4" "$@"
echo
echo "To walk in that maze in the browser: .venv/bin/lingbot-world live out/maze"
