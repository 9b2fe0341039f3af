import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { angleBetween, rotate } from "../../web/js/math/quaternions.js";
import { poseAt } from "../../web/js/math/spline.js";
import { distance } from "../../web/js/math/vectors.js";
import * as document from "../../web/js/path/document.js";
import { EASINGS } from "../../web/js/math/easing.js";
import * as edits from "../../web/js/path/edits.js";
import { History } from "../../web/js/path/history.js";
import * as recording from "../../web/js/path/recording.js";
import { samplePath } from "../../web/js/path/track.js";

const s = { ...document, ...edits, ...recording, EASINGS, History, samplePath };

const cases = JSON.parse(readFileSync(new URL("../data/editor_cases.json", import.meta.url)));
const FIELD_OF = { easing: "ease", "field of view": "fov_deg", "frames a second": "fps" };
const pose = (x, frame) => ({ frame, position: [x, 0, 0], quaternion: [0, 0, 0, 1] });
const state = (keyframes, rest = {}) => s.validate({ version: 1, frames: 81, keyframes, ...rest });
const frames = ({ keyframes }) => keyframes.map((key) => key.frame);

for (const { name, state: given, poses } of cases.paths) {
  test(`as Python: ${name}`, () => {
    const sampled = s.samplePath(s.parse(JSON.stringify(given)));
    assert.equal(sampled.length, given.frames);
    for (const { frame, position, quaternion } of poses) {
      assert.ok(distance(sampled[frame].position, position) < 1e-9, `frame ${frame}: ${sampled[frame].position}`);
      assert.ok(angleBetween(sampled[frame].quaternion, quaternion) < 1e-5, `frame ${frame}: ${sampled[frame].quaternion}`);
    }
  });
}

for (const { name, names, state: given } of cases.refused) {
  test(`refused, as by Python: ${name}`, () => {
    assert.throws(() => s.parse(JSON.stringify(given)), (error) => error.message.startsWith(FIELD_OF[names] ?? names));
  });
}

test("easings, as Python", () => {
  const { times, progress } = cases.easings;
  assert.deepEqual(Object.keys(s.EASINGS), Object.keys(progress));
  for (const [name, expected] of Object.entries(progress)) {
    times.forEach((time, i) => assert.ok(Math.abs(s.EASINGS[name](time) - expected[i]) < 1e-12, `${name} at ${time}`));
  }
});

test("what is no object, or no JSON, is refused", () => {
  for (const text of ["", "null", "[]", "3", "{", '"x"', '{"version":1}', "NaN"]) assert.throws(() => s.parse(text), text);
});

test("text and state survive the way there and back", () => {
  const given = state([pose(0, 0), { ...pose(2, 80), quaternion: [0, 0.6, 0, 0.8] }]), text = s.serialize(given);
  assert.deepEqual(s.parse(text), given);
  assert.equal(s.serialize(s.parse(text)), text);
  assert.ok(!s.serialize(state([{ ...pose(-1e-9, 0) }])).includes("-0"));
});

test("keyframes are set, moved in time, duplicated and removed", () => {
  const start = state([pose(0, 0), pose(8, 80)]);
  const three = s.setKeyframe(start, 40, pose(1));
  assert.deepEqual(frames(three), [0, 40, 80]);
  assert.deepEqual(frames(start), [0, 80]);
  assert.deepEqual(frames(s.retimeKeyframe(three, 40, 60)), [0, 60, 80]);
  const [doubled, at] = s.duplicateKeyframe(three, 40);
  assert.deepEqual([frames(doubled), at], [[0, 40, 48, 80], 48]);
  assert.deepEqual(s.keyframeAt(doubled, 48).position, [1, 0, 0]);
  assert.deepEqual(frames(s.removeKeyframe(three, 0)), [40, 80]);
});

test("a path full of keyframes has no place for a copy", () => {
  const full = state([0, 1, 2, 3, 4].map((frame) => pose(frame, frame)), { frames: 5 });
  assert.deepEqual(s.duplicateKeyframe(full, 2), [full, 2]);
});

test("editing the end of a loop edits its start", () => {
  const looped = s.setKeyframe(state([pose(0, 0), pose(8, 40)], { loop: true }), 80, pose(5));
  assert.deepEqual(looped.keyframes[0].position, [5, 0, 0]);
  assert.deepEqual(s.samplePath(looped)[80].position, [5, 0, 0]);
  assert.deepEqual(frames(s.retimeKeyframe(state([pose(0, 0)], { loop: true }), 0, 80)), [0]);
});

test("looping hides no keyframe", () => {
  const there = state([pose(0, 0), pose(8, 80)]), looped = s.toggleLoop(there);
  assert.deepEqual([looped.loop, frames(looped)], [true, [0, 40]]);
  assert.deepEqual(s.samplePath(looped)[40].position, [8, 0, 0]);
  assert.deepEqual([s.toggleLoop(looped).loop, frames(s.toggleLoop(looped))], [false, [0, 40]]);
  for (const kept of [[pose(1, 80)], [pose(0, 0), pose(1, 60)], [pose(0, 79), pose(1, 80)]]) {
    assert.deepEqual(frames(s.toggleLoop(state(kept))), kept.map((key) => key.frame));
  }
});

test("another length stretches the move", () => {
  assert.deepEqual(frames(s.setFrames(state([pose(0, 0), pose(1, 40), pose(2, 80)]), 161)), [0, 80, 160]);
  const squeezed = s.setFrames(state([pose(0, 0), pose(1, 1), pose(2, 80)]), 5);
  assert.deepEqual(frames(squeezed), [0, 4]);
  assert.doesNotThrow(() => s.validate(squeezed));
});

test("a recording keeps within its tolerance with few keyframes", () => {
  const poses = Array.from({ length: 81 }, (_, i) => ({
    position: [Math.sin(i / 15), 0, i * 0.05], quaternion: [0, Math.sin(i / 90), 0, Math.cos(i / 90)],
  }));
  const keyframes = s.simplify(poses);
  assert.ok(keyframes.length < 16, `${keyframes.length} keyframes`);
  poses.forEach((expected, frame) => {
    const found = poseAt(keyframes, frame);
    assert.ok(distance(found.position, expected.position) <= 0.01);
    assert.ok(angleBetween(found.quaternion, expected.quaternion) <= 0.5);
  });
});

test("a recording replaces what was there from its start on", () => {
  const flown = Array.from({ length: 21 }, (_, i) => ({ position: [i, 0, 0], quaternion: [0, 0, 0, 1] }));
  const result = s.replaceWithRecording(state([pose(0, 0), pose(3, 25), pose(9, 70)], { loop: true }), 20, flown);
  assert.deepEqual(frames(result), [0, 20, 40]);
  assert.deepEqual([result.loop, s.validate(result).frames], [false, 81]);
  assert.equal(s.serialize(result), s.serialize(s.validate(result)), "fields keep their order");
});

test("undo and redo; one drag is one step", () => {
  const history = new s.History("a"), drag = {};
  history.push("b");
  for (const step of ["c", "d", "e"]) history.push(step, drag);
  assert.deepEqual([history.travel(-1), history.state], [true, "b"]);
  assert.deepEqual([history.travel(1), history.state], [true, "e"]);
  history.push("e, moved", drag);
  assert.deepEqual([history.travel(-1), history.state], [true, "e"]);
  history.travel(-1);
  history.travel(-1);
  assert.deepEqual([history.travel(-1), history.state], [false, "a"]);
  history.push("f");
  assert.deepEqual([history.travel(1), history.state], [false, "f"]);
});

test("rotations of a sampled path stay rotations", () => {
  const { quaternion } = s.samplePath(state([pose(0, 0), { ...pose(1, 80), quaternion: [0.3, 0.4, 0.5, 0.6] }]))[33];
  assert.ok(Math.abs(Math.hypot(...rotate(quaternion, [1, 2, 2])) - 3) < 1e-12);
});
