#!/usr/bin/env bash
# A walk through a little room by tiny trained models, on the CPU, in a minute or so. MOVE=pan_left bash scripts/demo.sh
# asks for another camera move: the names are those of `lingbot-world camera make --preset`.
# Needs Python 3.10 or newer and PyPI; makes .venv unless it is there. Further arguments go to `lingbot-world generate`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
make_environment cli,live
move=${MOVE:-pan_right}
case $move in pan_* | tilt_* | roll_*) amount=25 ;; *) amount=2 ;; esac

say "tiny models, an image and a prompt, into out/toy"
.venv/bin/lingbot-world toy out/toy
say "the camera's path, $move, and its drawing"
.venv/bin/lingbot-world camera make --preset "$move" --amount $amount --frames 33 --overwrite "out/$move"
.venv/bin/lingbot-world camera show "out/$move" --image out/toy/example/image.png --output out/demo-camera.png --overwrite
say "the video, 33 frames in 8 steps on the CPU"
.venv/bin/lingbot-world generate \
    --ckpt_dir out/toy \
    --image out/toy/example/image.png \
    --prompt "$(cat out/toy/example/prompt.txt)" \
    --action_path "out/$move" \
    --width 160 --height 96 --frame_num 33 --sampling_steps 8 --guide_scale 1 --seed 1 --device cpu --overwrite \
    --output "$PWD/out/demo.mp4" "$@"
echo
echo "To walk in that room in the browser: .venv/bin/lingbot-world live out/toy --width 160 --height 96"
