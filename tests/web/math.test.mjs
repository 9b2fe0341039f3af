import assert from "node:assert/strict";
import test from "node:test";
import * as quaternions from "../../web/js/math/quaternions.js";
import { poseAt } from "../../web/js/math/spline.js";

const m = { ...quaternions, poseAt };

const close = (found, expected, tolerance = 1e-9) =>
  found.forEach((value, i) => assert.ok(Math.abs(value - expected[i]) <= tolerance, `${found} is not ${expected}`));
const random = (seed) => () => (seed = (seed * 16807) % 2147483647) / 2147483647;
const next = random(7);
const randomQuaternion = () => m.normalize([next() - 0.5, next() - 0.5, next() - 0.5, next() - 0.5]);

test("angles mean what film people mean, in OpenCV axes", () => {
  close(m.rotate(m.fromAngles(90, 0), [0, 0, 1]), [1, 0, 0]); // yaw right looks along +x
  close(m.rotate(m.fromAngles(0, 90), [0, 0, 1]), [0, -1, 0]); // pitch up looks along -y
  close(m.rotate(m.fromAngles(0, 0, 90), [1, 0, 0]), [0, 1, 0]); // roll clockwise: right becomes down
});

test("angles survive the way there and back", () => {
  for (const angles of [[0, 0, 0], [170, 80, -20], [-35, -60, 179], [12, 89, 3]]) {
    close(m.toAngles(m.fromAngles(...angles)), angles, 1e-6);
  }
  const up = m.fromAngles(40, 90);
  assert.ok(m.angleBetween(m.fromAngles(...m.toAngles(up)), up) < 1e-4);
});

test("turning composes, keeps lengths and is undone by the conjugate", () => {
  for (let i = 0; i < 200; i += 1) {
    const a = randomQuaternion(), b = randomQuaternion(), v = [next(), next(), next()];
    close(m.rotate(m.multiply(a, b), v), m.rotate(a, m.rotate(b, v)));
    close(m.rotate(m.conjugate(a), m.rotate(a, v)), v);
  }
});

test("slerp is unit length, even, and takes the short way", () => {
  for (let i = 0; i < 200; i += 1) {
    const a = randomQuaternion(), b = randomQuaternion(), whole = m.angleBetween(a, b);
    const part = m.slerp(a, b, 0.3);
    assert.ok(Math.abs(Math.hypot(...part) - 1) < 1e-12);
    assert.ok(Math.abs(m.angleBetween(a, part) - 0.3 * whole) < 1e-6);
    assert.ok(whole <= 180.000001);
  }
});

test("a path goes through its keyframes and holds outside them", () => {
  const keyframes = [3, 10, 11, 40].map((frame) => ({ frame, position: [next(), next(), next()], quaternion: randomQuaternion() }));
  for (const key of keyframes) {
    close(m.poseAt(keyframes, key.frame).position, key.position);
    assert.ok(m.angleBetween(m.poseAt(keyframes, key.frame).quaternion, key.quaternion) < 1e-5);
  }
  assert.deepEqual(m.poseAt(keyframes, 0), keyframes[0]);
  assert.deepEqual(m.poseAt(keyframes, 99), keyframes[3]);
});

test("many keyframes never give a NaN", () => {
  const keyframes = Array.from({ length: 1000 }, (_, i) => ({ frame: i * 2, position: [next(), 0, 1e6 * next()], quaternion: randomQuaternion() }));
  for (let frame = 0; frame < 2000; frame += 0.7) {
    const { position, quaternion } = m.poseAt(keyframes, frame);
    assert.ok([...position, ...quaternion].every(Number.isFinite));
    assert.ok(Math.abs(Math.hypot(...quaternion) - 1) < 1e-9);
  }
});
