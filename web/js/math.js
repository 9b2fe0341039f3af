// Vectors are [x, y, z]; quaternions [x, y, z, w], camera to world. OpenCV axes: x right, y down, z forward.

export const RAD = Math.PI / 180;
export const add = (a, b) => [a[0] + b[0], a[1] + b[1], a[2] + b[2]];
export const subtract = (a, b) => [a[0] - b[0], a[1] - b[1], a[2] - b[2]];
export const scale = (a, factor) => a.map((value) => value * factor);
export const distance = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);
export const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
export const mixVectors = (a, b, t) => a.map((value, i) => value + (b[i] - value) * t);

export const multiply = ([ax, ay, az, aw], [bx, by, bz, bw]) => [
  aw * bx + ax * bw + ay * bz - az * by,
  aw * by - ax * bz + ay * bw + az * bx,
  aw * bz + ax * by - ay * bx + az * bw,
  aw * bw - ax * bx - ay * by - az * bz,
];
export const conjugate = ([x, y, z, w]) => [-x, -y, -z, w];
export const normalize = (q) => scale(q, 1 / Math.hypot(...q));

/** Vector v turned by quaternion q: v + 2w(u x v) + 2u x (u x v). */
export function rotate([x, y, z, w], [vx, vy, vz]) {
  const tx = 2 * (y * vz - z * vy), ty = 2 * (z * vx - x * vz), tz = 2 * (x * vy - y * vx);
  return [vx + w * tx + y * tz - z * ty, vy + w * ty + z * tx - x * tz, vz + w * tz + x * ty - y * tx];
}

export const aboutAxis = (axis, angle) => [...scale(axis, Math.sin((angle * RAD) / 2)), Math.cos((angle * RAD) / 2)];
/** Yaw turns right about the world's y, pitch looks up, roll is clockwise about the viewing direction (degrees). */
export const fromAngles = (yaw, pitch, roll = 0) =>
  multiply(multiply(aboutAxis([0, 1, 0], yaw), aboutAxis([1, 0, 0], pitch)), aboutAxis([0, 0, 1], roll));

export function toAngles(q) {
  const forward = rotate(q, [0, 0, 1]), right = rotate(q, [1, 0, 0]), down = rotate(q, [0, 1, 0]);
  const pitch = Math.asin(clamp(-forward[1], -1, 1)) / RAD;
  if (Math.abs(forward[1]) > 1 - 1e-9) return [Math.atan2(-right[2], right[0]) / RAD, pitch, 0];
  return [Math.atan2(forward[0], forward[2]) / RAD, pitch, Math.atan2(right[1], down[1]) / RAD];
}

/** Angle in degrees between two orientations. */
export function angleBetween(a, b) {
  const [x, y, z, w] = multiply(conjugate(a), b);
  return (2 * Math.atan2(Math.hypot(x, y, z), Math.abs(w))) / RAD;
}

/** The shortest arc from a to b. */
export function slerp(a, b, t) {
  const cosine = a.reduce((sum, value, i) => sum + value * b[i], 0), sign = cosine < 0 ? -1 : 1;
  const angle = Math.acos(Math.min(1, Math.abs(cosine))), sine = Math.sin(angle);
  const [from, to] = sine < 1e-6 ? [1 - t, t] : [Math.sin((1 - t) * angle) / sine, Math.sin(t * angle) / sine];
  return normalize(a.map((value, i) => from * value + sign * to * b[i]));
}

/** Catmull-Rom tangent per frame at keyframe i: over both neighbours, one-sided at the ends. */
function tangent(keyframes, i) {
  const before = keyframes[Math.max(0, i - 1)], after = keyframes[Math.min(keyframes.length - 1, i + 1)];
  return scale(subtract(after.position, before.position), 1 / (after.frame - before.frame));
}

function hermite(p0, m0, p1, m1, span, t) {
  const t2 = t * t, t3 = t2 * t;
  const a = 2 * t3 - 3 * t2 + 1, b = (t3 - 2 * t2 + t) * span, c = 3 * t2 - 2 * t3, d = (t3 - t2) * span;
  return p0.map((value, k) => a * value + b * m0[k] + c * p1[k] + d * m1[k]);
}

/** The pose at a (fractional) frame: cubic Hermite positions, slerped rotations, held outside the keyframes. */
export function poseAt(keyframes, frame) {
  const i = keyframes.findLastIndex((key) => key.frame <= frame), from = keyframes[i], to = keyframes[i + 1];
  if (!from || !to) return from ?? to;
  const span = to.frame - from.frame, t = (frame - from.frame) / span;
  const position = hermite(from.position, tangent(keyframes, i), to.position, tangent(keyframes, i + 1), span, t);
  return { position, quaternion: slerp(from.quaternion, to.quaternion, t) };
}
