// The path that a document describes: the pose of every frame of the video.

import { poseAt } from "../math/spline.js";
import { EASINGS } from "../math/easing.js";

/** @typedef {import("./document.js").PathState} PathState */

/**
 * The keyframes that count. With `loop` a copy of the first one stands at the last frame, in place of any there.
 * @type {(state: PathState) => import("../math/spline.js").Keyframe[]}
 */
export function track({ keyframes, frames, loop }) {
  if (!loop) return keyframes;
  const end = frames - 1;
  return [...keyframes.filter((key) => key.frame < end), { ...keyframes[0], frame: end }];
}

/**
 * The time on the track, in frames, that video frame `frame` shows.
 * @type {(state: PathState, frame: number) => number}
 */
export const easedTime = ({ frames, ease }, frame) => (frames - 1) * EASINGS[ease](frame / (frames - 1));

/**
 * The pose of every video frame: what Python's `path_from_editor` computes.
 * @type {(state: PathState) => import("../math/spline.js").Pose[]}
 */
export function samplePath(state) {
  const keyframes = track(state);
  return Array.from({ length: state.frames }, (_, frame) => poseAt(keyframes, easedTime(state, frame)));
}
