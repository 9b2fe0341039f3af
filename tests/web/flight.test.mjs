import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { Flight, step } from "../../web/js/flight.js";
import { fromAngles, rotate, toAngles } from "../../web/js/math/quaternions.js";
import { readNpz } from "./npz.mjs";

const golden = new URL("../golden/keys/", import.meta.url);
const cases = JSON.parse(readFileSync(new URL("manifest.json", golden)));
const arrays = readNpz(new URL("keys.npz", golden));
const START = { position: [0, 0, 0], quaternion: [0, 0, 0, 1] };

function heldFrames(script, frames) {
  const held = script.split(",").flatMap((part) => {
    const [keys, count] = part.split("-");
    return Array(Number(count)).fill(new Set(keys === "none" ? "" : keys));
  });
  return Array.from({ length: frames }, (_, i) => held[i] ?? new Set());
}

for (const { name, script, frames } of cases) {
  test(`flying "${script}" equals the official poses`, () => {
    const { data } = arrays[`${name}/poses`];
    let pose = START;
    heldFrames(script, frames).forEach((held, i) => {
      pose = step(pose, held);
      const columns = [[1, 0, 0], [0, 1, 0], [0, 0, 1]].map((axis) => rotate(pose.quaternion, axis));
      for (let row = 0; row < 3; row += 1) {
        [...columns, pose.position].forEach((column, k) => {
          assert.ok(Math.abs(column[row] - data[(i + 1) * 16 + row * 4 + k]) < 1e-9, `frame ${i}, row ${row}, column ${k}`);
        });
      }
    });
  });
}

test("recording starts with the first input, one pose a frame, and stops at the end", () => {
  const flight = new Flight(START, 16, 10);
  assert.equal(flight.advance(1), false);
  assert.equal(flight.poses.length, 1);
  flight.held.add("w");
  for (let i = 0; i < 4; i += 1) flight.advance(1 / 16);
  assert.equal(flight.poses.length, 5);
  flight.held.clear();
  for (let i = 0; i < 20; i += 1) flight.advance(1 / 16);
  assert.ok(flight.finished);
  assert.equal(flight.poses.length, 10);
  assert.ok(Math.abs(flight.poses.at(-1).position[2] - 0.2) < 1e-5);
});

test("a fast mouse turns over several frames, and never past the pitch limit", () => {
  const flight = new Flight(START, 16);
  flight.lookBy(10, 0);
  flight.advance(1 / 16);
  assert.ok(Math.abs(toAngles(flight.pose.quaternion)[0] - 4) < 1e-9);
  for (let i = 0; i < 3; i += 1) flight.advance(1 / 16);
  assert.ok(Math.abs(toAngles(flight.pose.quaternion)[0] - 10) < 1e-9);
  flight.lookBy(0, 400);
  for (let i = 0; i < 120; i += 1) flight.advance(1 / 16);
  assert.ok(toAngles(flight.pose.quaternion)[1] <= 85);
});

test("a camera that looks straight up can be turned back", () => {
  const { quaternion } = step({ ...START, quaternion: fromAngles(0, 89) }, new Set("k"));
  assert.ok(toAngles(quaternion)[1] < 88);
});
