// Preset moves as documents: what camera/moves/presets.py makes, as keyframes that can be edited further.

import { aboutAxis, fromAngles, rotate } from "../math/quaternions.js";
import { add, distance, RAD, scale, subtract } from "../math/vectors.js";
import { setFrames } from "./edits.js";
import { simplify } from "./recording.js";

/**
 * @typedef {import("./document.js").PathState} PathState
 * @typedef {import("../math/spline.js").Pose} Pose
 * @typedef {(progress: number, amount: number) => Pose} Move
 */

const SUBJECT = [0, 0, 4]; // the point that orbits and cranes keep in view
const SAMPLES = 81;
const AXES = { x: [1, 0, 0], y: [0, 1, 0], z: [0, 0, 1] };
const STRAIGHT = [0, 0, 0, 1];

/** @type {(...direction: number[]) => Move} */
const carry = (...direction) => (progress, amount) =>
  ({ position: scale(direction, amount * progress), quaternion: STRAIGHT });

/** On the spot, about an axis. @type {(axis: string, sign: number) => Move} */
const turn = (axis, sign) => (progress, amount) =>
  ({ position: [0, 0, 0], quaternion: aboutAxis(AXES[axis], sign * amount * progress) });

/** Round the subject, about an axis through it. @type {(axis: string, sign: number) => Move} */
const swing = (axis, sign) => (progress, amount) => {
  const quaternion = aboutAxis(AXES[axis], sign * amount * progress);
  return { position: subtract(SUBJECT, rotate(quaternion, SUBJECT)), quaternion };
};

/** A camera at a position that looks at the subject, its horizon level. @type {(position: number[]) => Pose} */
function facing(position) {
  const [x, y, z] = scale(subtract(SUBJECT, position), 1 / distance(SUBJECT, position));
  return { position, quaternion: fromAngles(Math.atan2(x, z) / RAD, Math.asin(-y) / RAD) };
}

/** Up or down, the subject in view. @type {(sign: number) => Move} */
const crane = (sign) => (progress, amount) => facing([0, sign * amount * progress, 0]);

/** Round the subject, closing in to half the distance and rising by a quarter of it. @type {Move} */
function spiral(progress, amount) {
  const away = rotate(aboutAxis(AXES.y, -amount * progress), scale(SUBJECT, -1));
  const lift = [0, -0.25 * SUBJECT[2] * progress, 0];
  return facing(add(add(SUBJECT, scale(away, 1 - 0.5 * progress)), lift));
}

/** @type {Move} */
function figureEight(progress, amount) {
  const angle = 2 * Math.PI * progress;
  return { position: scale([Math.sin(angle), Math.sin(2 * angle) / 2, 0], amount), quaternion: STRAIGHT };
}

/** Move and amount (units or degrees) by name. @type {Record<string, [Move, number]>} */
export const PRESETS = {
  static: [carry(0, 0, 0), 0],
  dolly_in: [carry(0, 0, 1), 2],
  dolly_out: [carry(0, 0, -1), 2],
  truck_left: [carry(-1, 0, 0), 2],
  truck_right: [carry(1, 0, 0), 2],
  pedestal_up: [carry(0, -1, 0), 2],
  pedestal_down: [carry(0, 1, 0), 2],
  pan_left: [turn("y", -1), 45],
  pan_right: [turn("y", 1), 45],
  tilt_up: [turn("x", 1), 25],
  tilt_down: [turn("x", -1), 25],
  roll_clockwise: [turn("z", 1), 30],
  roll_counterclockwise: [turn("z", -1), 30],
  orbit_left: [swing("y", 1), 90],
  orbit_right: [swing("y", -1), 90],
  arc_left: [swing("y", 1), 30],
  arc_right: [swing("y", -1), 30],
  arc_over: [swing("x", -1), 40],
  crane_up: [crane(-1), 2],
  crane_down: [crane(1), 2],
  spiral: [spiral, 180],
  figure_eight: [figureEight, 1],
};

/**
 * The document with a preset move in place of its own, as long as before.
 * @type {(state: PathState, name: string) => PathState}
 */
export function withPreset(state, name) {
  const [move, amount] = PRESETS[name];
  const poses = Array.from({ length: SAMPLES }, (_, i) => move(i / (SAMPLES - 1), amount));
  return withMove(state, { frames: SAMPLES, ease: "linear", loop: false, keyframes: simplify(poses) });
}

/**
 * The document with the move of another one, as long as before and with its own lens.
 * @type {(state: PathState, other: Pick<PathState, "frames" | "ease" | "loop" | "keyframes">) => PathState}
 */
export function withMove(state, { frames, ease, loop, keyframes }) {
  return setFrames({ ...state, frames, ease, loop, keyframes }, state.frames);
}
