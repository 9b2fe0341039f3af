// Vectors of three numbers, in OpenCV axes: x right, y down, z forward.

/** @typedef {number[]} Vector  [x, y, z] */

/** Radians of one degree. */
export const RAD = Math.PI / 180;

/** @type {(a: Vector, b: Vector) => Vector} */
export const add = (a, b) => [a[0] + b[0], a[1] + b[1], a[2] + b[2]];

/** @type {(a: Vector, b: Vector) => Vector} */
export const subtract = (a, b) => [a[0] - b[0], a[1] - b[1], a[2] - b[2]];

/** Each component times a factor; quaternions too. @type {(a: number[], factor: number) => number[]} */
export const scale = (a, factor) => a.map((value) => value * factor);

/** @type {(a: Vector, b: Vector) => number} */
export const distance = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);

/** @type {(value: number, low: number, high: number) => number} */
export const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/** From `a` at t = 0 to `b` at t = 1. @type {(a: number[], b: number[], t: number) => number[]} */
export const mixVectors = (a, b, t) => a.map((value, i) => value + (b[i] - value) * t);
