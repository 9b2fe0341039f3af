import assert from "node:assert/strict";
import test from "node:test";
import { validate } from "../../web/js/path/document.js";
import { easedKeyframe, setKeyframe, setKeyframeEase } from "../../web/js/path/edits.js";
import { PRESETS, withMove, withPreset } from "../../web/js/path/presets.js";
import { replaceWithRecording } from "../../web/js/path/recording.js";

const key = (frame, z) => ({ frame, position: [0, 0, z], quaternion: [0, 0, 0, 1] });
const state = (frames, keyframes = [key(0, 0), key(frames - 1, 2)], rest = {}) => validate({ version: 1, frames, keyframes, ...rest });

test("presets fit into any length and keep the video's own settings", () => {
  for (const name of Object.keys(PRESETS)) {
    for (const frames of [5, 81, 1001]) {
      const made = withPreset(state(frames, undefined, { fps: 24, fov_deg: 60 }), name);
      assert.doesNotThrow(() => validate(made));
      assert.deepEqual([made.frames, made.fps, made.fov_deg, made.keyframes.at(-1).frame], [frames, 24, 60, frames - 1]);
    }
  }
});

test("a saved move is stretched to the video", () => {
  const saved = state(81, [key(0, 0), key(40, 1), key(80, 2)], { loop: true, ease: "ease_in" });
  const { frames, keyframes, loop, ease } = withMove(state(41), saved);
  assert.deepEqual([frames, keyframes.map(({ frame }) => frame), loop, ease], [41, [0, 20, 40], true, "ease_in"]);
});

test("a keyframe keeps its easing when it is moved, and a linear one is not written", () => {
  const eased = setKeyframeEase(state(81), 0, "cubic_in");
  assert.deepEqual(eased.keyframes.map(({ ease }) => ease), ["cubic_in", undefined]);
  assert.equal(setKeyframe(eased, 0, key(0, 5)).keyframes[0].ease, "cubic_in");
  assert.deepEqual(setKeyframeEase(eased, 0, "linear"), state(81));
});

test("the easing at a frame is that of the keyframe before it, while another follows", () => {
  const path = state(81, [key(10, 0), key(40, 1)]);
  assert.deepEqual([5, 10, 39.5, 40, 60].map((frame) => easedKeyframe(path, frame)?.frame), [undefined, 10, 10, undefined, undefined]);
  assert.equal(easedKeyframe({ ...path, loop: true }, 60).frame, 40);
});

test("a recording beyond the end makes the video longer, to 4n+1 frames", () => {
  const flown = Array.from({ length: 7 }, (_, i) => key(i, i));
  const { frames, keyframes } = replaceWithRecording(state(81), 80, flown);
  assert.deepEqual([frames, keyframes[0].frame, keyframes.at(-1).frame], [89, 0, 86]);
});
