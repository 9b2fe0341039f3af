// The scene: everything drawn that depends on the document alone, made once per edit.

import { rotate } from "../math/quaternions.js";
import { add, distance, mixVectors, RAD } from "../math/vectors.js";
import { samplePath } from "../path/track.js";

/**
 * @typedef {import("../math/vectors.js").Vector} Vector
 * @typedef {import("../math/spline.js").Pose} Pose
 * @typedef {import("../path/document.js").PathState} PathState
 *
 * @typedef {object} Sizes  measures in world units that must not change while something is dragged
 * @property {Vector} low  the keyframes' bounds
 * @property {Vector} high
 * @property {Vector} center
 * @property {number} extent  from low to high, at least half a unit
 * @property {number} symbol  length of a camera symbol
 * @property {number} cardDepth  how far ahead of the first camera the card with the first frame stands
 * @property {number} ground  y of the ground
 *
 * @typedef {{aspect: number, fit: "fill" | "cover" | "contain"}} Video
 *   the video's width over its height, and how the first frame is brought to it: stretched, cropped or padded
 *
 * @typedef {object} CameraSymbol
 * @property {Vector} apex  where the camera is
 * @property {number} time  0 at the start of the video, 1 at its end
 * @property {Vector[]} corners  of its picture, clockwise from the top left one
 * @property {Vector[]} roof  of the triangle that shows which side is up
 */

const CORNERS = [[-1, -1], [1, -1], [1, 1], [-1, 1]];
const ROOF = [[-0.4, -1.15], [0, -1.6], [0.4, -1.15]];

/** 1, 2 or 5 times a power of ten, at least `length`. @type {(length: number) => number} */
export function niceStep(length) {
  const power = 10 ** Math.floor(Math.log10(length));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= length * 0.999);
}

/** @type {(state: PathState) => Sizes} */
export function measure({ keyframes }) {
  const bounds = (bound) => [0, 1, 2].map((axis) => bound(...keyframes.map((key) => key.position[axis])));
  const low = bounds(Math.min);
  const high = bounds(Math.max);
  const extent = Math.max(distance(low, high), 0.5);
  return {
    low,
    high,
    center: mixVectors(low, high, 0.5),
    extent,
    symbol: extent * 0.08,
    cardDepth: extent * 1.3,
    ground: high[1] + extent * 0.18,
  };
}

/** @param {PathState} state @param {Sizes} sizes @param {number} aspect  width over height of the picture */
export function buildScene(state, sizes, aspect) {
  const halfWidth = Math.tan((state.fov_deg * RAD) / 2);
  const halfHeight = halfWidth / aspect;

  /** @type {(pose: Pose & {frame?: number}, size?: number) => CameraSymbol} */
  function camera({ position, quaternion, frame }, size = sizes.symbol) {
    const place = ([x, y]) => add(position, rotate(quaternion, [x * halfWidth * size, y * halfHeight * size, size]));
    return {
      apex: position,
      time: frame / (state.frames - 1),
      corners: CORNERS.map(place),
      get roof() {
        return ROOF.map(place);
      },
    };
  }

  /** The point ahead of a camera by which plans turn it. @type {(pose: Pose) => Vector} */
  const handle = ({ position, quaternion }) => add(position, rotate(quaternion, [0, 0, sizes.symbol * 2.5]));

  return {
    state,
    sizes,
    camera,
    handle,
    path: samplePath(state).map((pose) => pose.position),
    cameras: state.keyframes.map((key) => camera(key)),
    card: camera(state.keyframes[0], sizes.cardDepth).corners,
  };
}

/** @typedef {ReturnType<typeof buildScene>} Scene */
