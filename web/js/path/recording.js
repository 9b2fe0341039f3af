// A recorded flight, one pose a frame, as keyframes of the document.

import { angleBetween } from "../math/quaternions.js";
import { poseAt } from "../math/spline.js";
import { distance } from "../math/vectors.js";
import { MOST_FRAMES } from "./document.js";

/**
 * @typedef {import("./document.js").PathState} PathState
 * @typedef {import("../math/spline.js").Keyframe} Keyframe
 * @typedef {import("../math/spline.js").Pose} Pose
 */

/** How far the keyframes' path is from each pose, in tolerances. */
function errorsOf(keyframes, poses, positionTolerance, angleTolerance) {
  return poses.map(({ position, quaternion }, frame) => {
    const guess = poseAt(keyframes, frame);
    const moved = distance(guess.position, position) / positionTolerance;
    const turned = angleBetween(guess.quaternion, quaternion) / angleTolerance;
    return Math.max(moved, turned);
  });
}

/**
 * Few keyframes that keep every frame within the tolerances (units, degrees): the worst frame becomes a keyframe until
 * none is too far off.
 * @type {(poses: Pose[], positionTolerance?: number, angleTolerance?: number) => Keyframe[]}
 */
export function simplify(poses, positionTolerance = 0.01, angleTolerance = 0.5) {
  const kept = new Set([0, poses.length - 1]);
  for (;;) {
    const keyframes = [...kept].sort((a, b) => a - b).map((frame) => ({ ...poses[frame], frame }));
    const errors = errorsOf(keyframes, poses, positionTolerance, angleTolerance);
    const worst = errors.reduce((best, error, frame) => (error > errors[best] ? frame : best), 0);
    if (errors[worst] <= 1) return keyframes;
    kept.add(worst);
  }
}

/** The smallest 4n+1, which the model takes, that is no less than `frames`. */
const modelFrames = (frames) => Math.ceil((frames - 1) / 4) * 4 + 1;

/**
 * The document in which a recording, its first pose at frame `start`, replaces what was there from `start` on. A
 * recording that goes beyond the end makes the video longer.
 * @type {(state: PathState, start: number, poses: Pose[]) => PathState}
 */
export function replaceWithRecording(state, start, poses) {
  const before = state.keyframes.filter(({ frame }) => frame < start);
  const recorded = simplify(poses).map(({ frame, ...pose }) => ({ frame: frame + start, ...pose }));
  const end = start + poses.length;
  const frames = end > state.frames ? Math.min(modelFrames(end), MOST_FRAMES) : state.frames;
  return { ...state, frames, ease: "linear", loop: false, keyframes: [...before, ...recorded] };
}
