// The pose between keyframes: positions on a cubic through the keyframes, orientations on the arcs between them.

import { EASINGS } from "./easing.js";
import { slerp } from "./quaternions.js";
import { scale, subtract } from "./vectors.js";

/**
 * @typedef {{position: import("./vectors.js").Vector, quaternion: import("./quaternions.js").Quaternion}} Pose
 *   where a camera is and how it is turned, camera to world
 * @typedef {Pose & {frame: number, ease?: string}} Keyframe
 *   `ease` names the easing of the way to the next keyframe; without it the way is linear
 */

/** Catmull-Rom tangent per frame at keyframe `i`: over both neighbours, one-sided at the ends. */
function tangent(keyframes, i) {
  const before = keyframes[Math.max(0, i - 1)];
  const after = keyframes[Math.min(keyframes.length - 1, i + 1)];
  return scale(subtract(after.position, before.position), 1 / (after.frame - before.frame));
}

/** The cubic that leaves p0 with tangent m0 and reaches p1 with tangent m1 after `frames` frames, at t from 0 to 1. */
function hermite(p0, m0, p1, m1, frames, t) {
  const t2 = t * t;
  const t3 = t2 * t;
  const fromStart = 2 * t3 - 3 * t2 + 1;
  const fromStartTangent = (t3 - 2 * t2 + t) * frames;
  const fromEnd = 3 * t2 - 2 * t3;
  const fromEndTangent = (t3 - t2) * frames;
  return p0.map((value, k) => fromStart * value + fromStartTangent * m0[k] + fromEnd * p1[k] + fromEndTangent * m1[k]);
}

/**
 * The pose at a frame, which may lie between two; held before the first and after the last keyframe.
 * @type {(keyframes: Keyframe[], frame: number) => Pose}
 */
export function poseAt(keyframes, frame) {
  const i = keyframes.findLastIndex((key) => key.frame <= frame);
  const from = keyframes[i];
  const to = keyframes[i + 1];
  if (!from || !to) return from ?? to;
  const frames = to.frame - from.frame;
  const t = EASINGS[from.ease ?? "linear"]((frame - from.frame) / frames);
  return {
    position: hermite(from.position, tangent(keyframes, i), to.position, tangent(keyframes, i + 1), frames, t),
    quaternion: slerp(from.quaternion, to.quaternion, t),
  };
}
