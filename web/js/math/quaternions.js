// Orientations of cameras: unit quaternions [x, y, z, w] that turn camera axes into world axes, both OpenCV.

import { clamp, RAD, scale } from "./vectors.js";

/**
 * @typedef {import("./vectors.js").Vector} Vector
 * @typedef {number[]} Quaternion  [x, y, z, w]
 */

/** Degrees up or down that a camera may look; straight up and down the yaw would be lost. */
const STEEPEST = 89;

/** @type {(pitch: number) => number} */
export const heldPitch = (pitch) => clamp(pitch, -STEEPEST, STEEPEST);

/** The turn `a` after the turn `b`. @type {(a: Quaternion, b: Quaternion) => Quaternion} */
export function multiply([ax, ay, az, aw], [bx, by, bz, bw]) {
  return [
    aw * bx + ax * bw + ay * bz - az * by,
    aw * by - ax * bz + ay * bw + az * bx,
    aw * bz + ax * by - ay * bx + az * bw,
    aw * bw - ax * bx - ay * by - az * bz,
  ];
}

/** The turn back. @type {(q: Quaternion) => Quaternion} */
export const conjugate = ([x, y, z, w]) => [-x, -y, -z, w];

/** @type {(q: Quaternion) => Quaternion} */
export const normalize = (q) => scale(q, 1 / Math.hypot(...q));

/** The vector v turned by q: v + 2w(u x v) + 2u x (u x v). @type {(q: Quaternion, v: Vector) => Vector} */
export function rotate([x, y, z, w], [vx, vy, vz]) {
  const tx = 2 * (y * vz - z * vy);
  const ty = 2 * (z * vx - x * vz);
  const tz = 2 * (x * vy - y * vx);
  return [vx + w * tx + y * tz - z * ty, vy + w * ty + z * tx - x * tz, vz + w * tz + x * ty - y * tx];
}

/** A turn by `degrees` about a unit vector. @type {(axis: Vector, degrees: number) => Quaternion} */
export function aboutAxis(axis, degrees) {
  const half = (degrees * RAD) / 2;
  return [...scale(axis, Math.sin(half)), Math.cos(half)];
}

/**
 * The orientation with these angles in degrees: yaw turns right about the world's y, pitch looks up, roll turns
 * clockwise about the viewing direction.
 * @type {(yaw: number, pitch: number, roll?: number) => Quaternion}
 */
export function fromAngles(yaw, pitch, roll = 0) {
  const level = multiply(aboutAxis([0, 1, 0], yaw), aboutAxis([1, 0, 0], pitch));
  return multiply(level, aboutAxis([0, 0, 1], roll));
}

/** [yaw, pitch, roll] in degrees; straight up and down the roll is 0. @type {(q: Quaternion) => number[]} */
export function toAngles(q) {
  const forward = rotate(q, [0, 0, 1]);
  const right = rotate(q, [1, 0, 0]);
  const down = rotate(q, [0, 1, 0]);
  const pitch = Math.asin(clamp(-forward[1], -1, 1)) / RAD;
  if (Math.abs(forward[1]) > 1 - 1e-9) return [Math.atan2(-right[2], right[0]) / RAD, pitch, 0];
  return [Math.atan2(forward[0], forward[2]) / RAD, pitch, Math.atan2(right[1], down[1]) / RAD];
}

/** Degrees between two orientations. @type {(a: Quaternion, b: Quaternion) => number} */
export function angleBetween(a, b) {
  const [x, y, z, w] = multiply(conjugate(a), b);
  return (2 * Math.atan2(Math.hypot(x, y, z), Math.abs(w))) / RAD;
}

/** The shortest arc from a (t = 0) to b (t = 1). @type {(a: Quaternion, b: Quaternion, t: number) => Quaternion} */
export function slerp(a, b, t) {
  const cosine = a.reduce((sum, value, i) => sum + value * b[i], 0);
  const sign = cosine < 0 ? -1 : 1;
  const angle = Math.acos(Math.min(1, Math.abs(cosine)));
  const sine = Math.sin(angle);
  const nearlyEqual = sine < 1e-6;
  const fromWeight = nearlyEqual ? 1 - t : Math.sin((1 - t) * angle) / sine;
  const toWeight = nearlyEqual ? t : Math.sin(t * angle) / sine;
  return normalize(a.map((value, i) => fromWeight * value + sign * toWeight * b[i]));
}
