// The document: what the workflow saves and camera/editor.py reads. States are immutable: every edit returns a new one.

import { angleBetween, clamp, distance, normalize, poseAt } from "./math.js";

const FEWEST_FRAMES = 5, MOST_FRAMES = 10001, MOST_KEYFRAMES = 1000, FARTHEST = 1e9;
const power = (n) => (u) => u ** n;
const out = (ease) => (u) => 1 - ease(1 - u);
const inOut = (ease) => (u) => (u < 0.5 ? ease(2 * u) : 2 - ease(2 - 2 * u)) / 2;

/** How a move speeds up and slows down: progress 0..1 as a function of time 0..1. */
export const EASINGS = {
  linear: power(1), ease_in: power(2), ease_out: out(power(2)), ease_in_out: (u) => u * u * (3 - 2 * u),
  cubic_in: power(3), cubic_out: out(power(3)), cubic_in_out: inOut(power(3)), quint_in_out: inOut(power(5)),
  sine_in_out: (u) => (1 - Math.cos(Math.PI * u)) / 2, smootherstep: (u) => u ** 3 * (u * (6 * u - 15) + 10),
};

const within = (v, low, high) => v >= low && v <= high;
const rule = (accepts, expected) => ({ accepts, expected });
const oneOf = (...values) => rule((v) => values.includes(v), values.join(" or "));
const whole = (low, high) => rule((v) => Number.isInteger(v) && within(v, low, high), `whole, from ${low} to ${high}`);
const isNumber = (v, low = -FARTHEST, high = FARTHEST) => typeof v === "number" && within(v, low, high);
const number = (low, high) => rule((v) => isNumber(v, low, high), `a number from ${low} to ${high}`);
const list = (low, high) => rule((v) => Array.isArray(v) && within(v.length, low, high), `a list of ${low} to ${high}`);
const isVector = (v, size) => list(size, size).accepts(v) && v.every((part) => isNumber(part));

const FIELDS = {
  version: oneOf(1), frames: whole(FEWEST_FRAMES, MOST_FRAMES), fps: number(1e-6, FARTHEST), fov_deg: number(1, 170),
  ease: oneOf(...Object.keys(EASINGS)), loop: oneOf(true, false), keyframes: list(1, MOST_KEYFRAMES),
};
const keyframeFields = (after, frames) => ({
  frame: whole(after + 1, frames - 1), position: rule((v) => isVector(v, 3), "x, y, z"),
  quaternion: rule((v) => isVector(v, 4) && Math.hypot(...v) > 1e-6, "x, y, z, w, not all 0"),
});

/** The fields of a value that has them all; throws an Error that names the first one that is wrong. */
function checked(value, fields, name = "") {
  return Object.fromEntries(Object.entries(fields).map(([key, { accepts, expected }]) => {
    const found = value?.[key];
    if (!accepts(found)) throw new Error(`${name}${key} is ${JSON.stringify(found)}, expected ${expected}`);
    return [key, found];
  }));
}

/** The checked state with unit quaternions. */
export function validate(given) {
  const state = checked({ fps: 16, fov_deg: 79, ease: "linear", loop: false, ...given }, FIELDS);
  const keyframes = state.keyframes.map((given, i, all) => {
    const key = checked(given, keyframeFields(all[i - 1]?.frame ?? -1, state.frames), `keyframe ${i} `);
    return { ...key, quaternion: normalize(key.quaternion) };
  });
  return { ...state, keyframes };
}

export const parse = (text) => validate(JSON.parse(text));
/** JSON with six decimals, which keeps workflows small. */
export const serialize = (state) => JSON.stringify(state, (key, value) =>
  (key === "position" || key === "quaternion" ? value.map((part) => Number(part.toFixed(6)) + 0) : value));

/** The keyframes that count: with `loop` a copy of the first stands at the last frame, in place of any there. */
export const track = ({ keyframes, frames, loop }) => (loop
  ? [...keyframes.filter((key) => key.frame < frames - 1), { ...keyframes[0], frame: frames - 1 }] : keyframes);

/** The time on the track, in frames, that video frame `frame` shows. */
export const easedTime = ({ frames, ease }, frame) => (frames - 1) * EASINGS[ease](frame / (frames - 1));

/** The camera-to-world pose of every video frame: what Python's `path_from_editor` computes. */
export const samplePath = (state, keyframes = track(state)) =>
  Array.from({ length: state.frames }, (_, frame) => poseAt(keyframes, easedTime(state, frame)));

export const keyframeAt = ({ keyframes }, frame) => keyframes.find((key) => key.frame === frame);
const without = ({ keyframes }, frame) => keyframes.filter((key) => key.frame !== frame);
export const removeKeyframe = (state, frame) => ({ ...state, keyframes: without(state, frame) });

/** Puts a pose at a frame, over the keyframe that may be there; the end of a loop is its first keyframe. */
export function setKeyframe(state, wanted, { position, quaternion }) {
  const frame = state.loop && wanted === state.frames - 1 ? (state.keyframes[0]?.frame ?? 0) : wanted;
  const keyframes = [...without(state, frame), { frame, position, quaternion }];
  return { ...state, keyframes: keyframes.sort((a, b) => a.frame - b.frame) };
}

/** Moves a keyframe in time, to a free frame. */
export const retimeKeyframe = (state, from, to) =>
  setKeyframe(removeKeyframe(state, from), to, keyframeAt(state, from));

/** Switches the return to the start; a keyframe at the very end, which that would hide, first moves halfway back. */
export function toggleLoop(state) {
  const [before, last] = state.keyframes.slice(-2), end = state.frames - 1, half = Math.round((before.frame + end) / 2);
  const hidden = !state.loop && last?.frame === end && half < end;
  return { ...(hidden ? retimeKeyframe(state, end, half) : state), loop: !state.loop };
}

/** Copies the pose at a frame to the free frame nearest to half a second later; returns [state, new frame]. */
export function duplicateKeyframe(state, frame) {
  const wanted = frame + Math.max(1, Math.round(state.fps / 2)), all = [...Array(state.frames).keys()];
  const [found] = all.filter((i) => !keyframeAt(state, i)).sort((a, b) => Math.abs(a - wanted) - Math.abs(b - wanted));
  return found === undefined ? [state, frame] : [setKeyframe(state, found, poseAt(track(state), frame)), found];
}

/** Another length in frames: the same move, stretched; keyframes that meet become one. */
export function setFrames(state, wanted) {
  const frames = clamp(Math.round(wanted), FEWEST_FRAMES, MOST_FRAMES), factor = (frames - 1) / (state.frames - 1);
  const moved = new Map(state.keyframes.map((key) => [Math.round(key.frame * factor), key]));
  return { ...state, frames, keyframes: [...moved].map(([frame, key]) => ({ ...key, frame })) };
}

/** A recorded run (poses one frame apart, the first at `start`) replaces what was there from its start on. */
export function replaceWithRecording(state, start, poses) {
  const kept = state.keyframes.filter(({ frame }) => frame < start);
  const recorded = simplify(poses).map(({ frame, ...pose }) => ({ frame: frame + start, ...pose }));
  return { ...state, ease: "linear", loop: false, keyframes: [...kept, ...recorded] };
}

/** The fewest keyframes found, greedily, that keep every frame within the tolerances (units, degrees). */
export function simplify(poses, positionTolerance = 0.01, angleTolerance = 0.5) {
  const keep = new Set([0, poses.length - 1]);
  for (;;) {
    const keyframes = [...keep].sort((a, b) => a - b).map((frame) => ({ ...poses[frame], frame }));
    const errors = poses.map(({ position, quaternion }, frame) => {
      const guess = poseAt(keyframes, frame), turned = angleBetween(guess.quaternion, quaternion);
      return Math.max(distance(guess.position, position) / positionTolerance, turned / angleTolerance);
    });
    const worst = errors.reduce((best, error, frame) => (error > errors[best] ? frame : best), 0);
    if (errors[worst] <= 1) return keyframes;
    keep.add(worst);
  }
}

/** Undo and redo over states. Edits that share a `gesture` (one drag) are undone as one. */
export class History {
  constructor(state) { this.reset(state); }
  reset(state) { Object.assign(this, { states: [state], at: 0, gesture: null }); }
  get state() { return this.states[this.at]; }
  push(state, gesture = null) {
    if (gesture === null || gesture !== this.gesture) this.at += 1;
    this.states.splice(this.at, Infinity, state);
    this.gesture = gesture;
  }

  /** Goes back (-1) or on (1) by a step; returns whether there is one. */
  travel(step) {
    if (!this.states[this.at + step]) return false;
    Object.assign(this, { at: this.at + step, gesture: null });
    return true;
  }
}
