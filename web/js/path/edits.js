// Edits of a document: each takes one and returns a new one.

import { poseAt } from "../math/spline.js";
import { ownEase } from "./document.js";
import { track } from "./track.js";

/**
 * @typedef {import("./document.js").PathState} PathState
 * @typedef {import("../math/spline.js").Keyframe} Keyframe
 * @typedef {import("../math/spline.js").Pose} Pose
 */

/** @type {(state: PathState, frame: number) => Keyframe | undefined} */
export const keyframeAt = ({ keyframes }, frame) => keyframes.find((key) => key.frame === frame);

/**
 * Whether a frame can get a keyframe: the end of a loop is its first one.
 * @type {(state: PathState, frame: number) => boolean}
 */
export const isFree = (state, frame) => !keyframeAt(state, frame) && !(state.loop && frame === state.frames - 1);

/** @type {(state: PathState, frame: number) => PathState} */
export const removeKeyframe = (state, frame) =>
  ({ ...state, keyframes: state.keyframes.filter((key) => key.frame !== frame) });

/**
 * Puts a pose at a frame, over the keyframe that may be there. The end of a loop is its first keyframe.
 * @type {(state: PathState, frame: number, pose: Pose) => PathState}
 */
export function setKeyframe(state, wanted, { position, quaternion, ease }) {
  const isLoopEnd = state.loop && wanted === state.frames - 1;
  const frame = isLoopEnd ? (state.keyframes[0]?.frame ?? 0) : wanted;
  const keptEase = keyframeAt(state, frame)?.ease ?? ease;
  const keyframe = { frame, position, quaternion, ...ownEase(keptEase) };
  const keyframes = [...removeKeyframe(state, frame).keyframes, keyframe];
  return { ...state, keyframes: keyframes.sort((a, b) => a.frame - b.frame) };
}

/**
 * The keyframe whose easing rules at a frame: the one before it, where another follows.
 * @type {(state: PathState, frame: number) => Keyframe | undefined}
 */
export function easedKeyframe(state, frame) {
  const keyframes = track(state);
  const ruling = keyframes.slice(0, -1).findLast((key) => key.frame <= frame);
  return ruling && frame < keyframes.at(-1).frame ? ruling : undefined;
}

/** Gives the keyframe at a frame an easing. @type {(state: PathState, frame: number, ease: string) => PathState} */
export function setKeyframeEase(state, frame, ease) {
  const withEase = ({ ease: _, ...key }) => ({ ...key, ...ownEase(ease) });
  return { ...state, keyframes: state.keyframes.map((key) => (key.frame === frame ? withEase(key) : key)) };
}

/** Moves a keyframe in time, to a free frame. @type {(state: PathState, from: number, to: number) => PathState} */
export const retimeKeyframe = (state, from, to) =>
  setKeyframe(removeKeyframe(state, from), to, keyframeAt(state, from));

/**
 * Switches the return to the start. A keyframe at the very end, which the return would hide, first moves halfway back.
 * @type {(state: PathState) => PathState}
 */
export function toggleLoop(state) {
  const [before, last] = state.keyframes.slice(-2);
  const end = state.frames - 1;
  const halfway = Math.round((before.frame + end) / 2);
  const wouldBeHidden = !state.loop && last?.frame === end && halfway < end;
  return { ...(wouldBeHidden ? retimeKeyframe(state, end, halfway) : state), loop: !state.loop };
}

/** The free frame that is nearest to `wanted`, if there is one. */
function freeFrame(state, wanted) {
  const free = [...Array(state.frames).keys()].filter((frame) => isFree(state, frame));
  return free.sort((a, b) => Math.abs(a - wanted) - Math.abs(b - wanted))[0];
}

/**
 * Copies the pose at a frame to the free frame nearest to half a second later; returns that frame too.
 * @type {(state: PathState, frame: number) => [PathState, number]}
 */
export function duplicateKeyframe(state, frame) {
  const found = freeFrame(state, frame + Math.max(1, Math.round(state.fps / 2)));
  if (found === undefined) return [state, frame];
  return [setKeyframe(state, found, poseAt(track(state), frame)), found];
}

/**
 * Another length in frames: the same move, stretched. Keyframes that meet become one.
 * @type {(state: PathState, frames: number) => PathState}
 */
export function setFrames(state, frames) {
  const factor = (frames - 1) / (state.frames - 1);
  const moved = new Map(state.keyframes.map((key) => [Math.round(key.frame * factor), key]));
  return { ...state, frames, keyframes: [...moved].map(([frame, key]) => ({ ...key, frame })) };
}
