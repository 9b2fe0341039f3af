// The document: what the workflow saves and camera/moves/editor.py reads. Its fields, what they may hold, its text.

import { normalize } from "../math/quaternions.js";
import { EASINGS } from "../math/easing.js";
import { words } from "../../live/words.mjs";

const FEWEST_FRAMES = 5;
export const MOST_FRAMES = 10001;
const MOST_KEYFRAMES = 1000;
const LARGEST = 1e9;

/**
 * @typedef {import("../math/spline.js").Keyframe} Keyframe
 * @typedef {object} PathState  a document; never changed, every edit returns a new one
 * @property {1} version
 * @property {number} frames  length of the video
 * @property {number} fps  frames a second
 * @property {number} fov_deg  horizontal field of view
 * @property {string} ease  name of the whole move's easing
 * @property {boolean} loop  whether the last frame returns to the first keyframe
 * @property {Keyframe[]} keyframes  at rising frames
 *
 * @typedef {{accepts: (value: unknown) => boolean, expected: () => string}} Rule  what a field may hold, and in words
 */

const isWithin = (value, low, high) => value >= low && value <= high;
const isNumber = (value, low = -LARGEST, high = LARGEST) => typeof value === "number" && isWithin(value, low, high);
const isVector = (value, size) =>
  Array.isArray(value) && value.length === size && value.every((part) => isNumber(part));

/** @type {(...values: unknown[]) => Rule} */
const oneOf = (...values) => ({
  accepts: (value) => values.includes(value),
  expected: () => values.join(` ${words("or")} `),
});

/** @type {(low: number, high: number) => Rule} */
const whole = (low, high) => ({
  accepts: (value) => Number.isInteger(value) && isWithin(value, low, high),
  expected: () => words("whole, from {low} to {high}", { low, high }),
});

/** @type {(low: number, high: number) => Rule} */
const number = (low, high) => ({
  accepts: (value) => isNumber(value, low, high),
  expected: () => words("a number from {low} to {high}", { low, high }),
});

/** @type {(low: number, high: number) => Rule} */
const list = (low, high) => ({
  accepts: (value) => Array.isArray(value) && isWithin(value.length, low, high),
  expected: () => words("a list of {low} to {high}", { low, high }),
});

const COORDINATE = number(-LARGEST, LARGEST);

/** @type {Rule} */
const POSITION = { accepts: (value) => isVector(value, 3), expected: () => "x, y, z" };

/** @type {Rule} */
const QUATERNION = {
  accepts: (value) => isVector(value, 4) && Math.hypot(...value) > 1e-6,
  expected: () => words("x, y, z, w, not all 0"),
};

/** @type {Rule} */
const EASE = oneOf(...Object.keys(EASINGS));

/** @type {Record<string, Rule>} */
const FIELDS = {
  version: oneOf(1),
  frames: whole(FEWEST_FRAMES, MOST_FRAMES),
  fps: number(1e-6, LARGEST),
  fov_deg: number(1, 170),
  ease: EASE,
  loop: oneOf(true, false),
  keyframes: list(1, MOST_KEYFRAMES),
};

/**
 * What is wrong with a value for a field of the document, or for a coordinate ("position"); null if nothing is.
 * @type {(field: string, value: unknown) => string | null}
 */
export function complaint(field, value) {
  const { accepts, expected } = field === "position" ? COORDINATE : FIELDS[field];
  return accepts(value) ? null : words("expected {rule}", { rule: expected() });
}

/** Rules for a keyframe that comes after frame `after` in a path of so many frames. */
const keyframeFields = (after, frames) => ({
  frame: whole(after + 1, frames - 1),
  position: POSITION,
  quaternion: QUATERNION,
  ease: EASE,
});

/** The field that a keyframe has for an easing: none where it is linear, as in documents of earlier versions. */
export const ownEase = (ease) => (ease === undefined || ease === "linear" ? {} : { ease });

/** The fields of `value` that have a rule; throws an Error that names the first one that breaks its rule. */
function checked(value, rules, name = "") {
  const fields = Object.entries(rules).map(([key, { accepts, expected }]) => {
    const found = value?.[key];
    if (accepts(found)) return [key, found];
    const values = { field: name + key, found: JSON.stringify(found) ?? "undefined", rule: expected() };
    throw new Error(words("{field} is {found}, expected {rule}", values));
  });
  return Object.fromEntries(fields);
}

/**
 * The document that a value describes, with what it leaves out at its default and with unit quaternions.
 * Throws an Error that names the first field that is wrong.
 * @type {(given: any) => PathState}
 */
export function validate(given) {
  const state = checked({ fps: 16, fov_deg: 79, ease: "linear", loop: false, ...given }, FIELDS);
  const keyframes = state.keyframes.map((entry, i, all) => {
    const rules = keyframeFields(all[i - 1]?.frame ?? -1, state.frames);
    const { ease, ...key } = checked({ ease: "linear", ...entry }, rules, `${words("keyframe {i}", { i })} `);
    return { ...key, quaternion: normalize(key.quaternion), ...ownEase(ease) };
  });
  return { ...state, keyframes };
}

/** @type {(text: string) => PathState} */
export const parse = (text) => validate(JSON.parse(text));

/** Six decimals keep workflows small; adding 0 turns -0 into 0. */
const rounded = (numbers) => numbers.map((value) => Number(value.toFixed(6)) + 0);

/** @type {(state: PathState) => string} */
export const serialize = (state) => JSON.stringify(state, (key, value) =>
  (key === "position" || key === "quaternion" ? rounded(value) : value));
