// Projection: where a point of the world is on a canvas, seen in perspective or in parallel.

import { fromAngles, rotate } from "../math/quaternions.js";
import { add, scale, subtract } from "../math/vectors.js";

/**
 * @typedef {import("../math/vectors.js").Vector} Vector
 * @typedef {Vector} Pixel  [x, y, 0] in CSS pixels of the canvas
 * @typedef {{quaternion: number[], axes: number[]}} Plane
 *   a parallel view: how it is turned, and which world axes lie across and along the screen
 */

/** What is nearer to the eye than this is not drawn. */
export const NEAR = 0.02;

/** @type {Plane} */
export const TOP = { quaternion: fromAngles(0, -90), axes: [0, 2] };

/** @type {Plane} */
export const SIDE = { quaternion: fromAngles(-90, 0), axes: [2, 1] };

const CAMERA_AXES = [[1, 0, 0], [0, 1, 0], [0, 0, 1]];

/**
 * A camera and the canvas it is seen on. World points become camera space (x right, y down, z depth; depth is 1 where
 * the view is `flat`, that is parallel), and camera space becomes pixels.
 */
export class View {
  /**
   * @param {import("../math/spline.js").Pose} pose
   * @param {number} focal  pixels a unit at depth 1
   */
  constructor({ position, quaternion }, focal, width, height, flat = false) {
    this.position = position;
    this.quaternion = quaternion;
    this.axes = CAMERA_AXES.map((axis) => rotate(quaternion, axis));
    this.focal = focal;
    this.centerX = width / 2;
    this.centerY = height / 2;
    this.flat = flat;
  }

  /** A world point in camera space. Written out, because it runs for every point of every frame. */
  toCamera(point) {
    const [dx, dy, dz] = subtract(point, this.position);
    const [right, down, ahead] = this.axes;
    const along = (axis) => axis[0] * dx + axis[1] * dy + axis[2] * dz;
    return [along(right), along(down), this.flat ? 1 : along(ahead)];
  }

  /** The pixel of a point in camera space. @type {(point: Vector) => Pixel} */
  toScreen([x, y, z]) {
    return [this.centerX + (this.focal * x) / z, this.centerY + (this.focal * y) / z, 0];
  }

  /** The pixel of a world point; null where it is behind the eye. @type {(world: Vector) => Pixel | null} */
  point(world) {
    const local = this.toCamera(world);
    return local[2] > NEAR ? this.toScreen(local) : null;
  }

  /**
   * The world point that is [dx, dy, 0] pixels from another one on the screen, as deep in the view.
   * @type {(world: Vector, delta: Pixel) => Vector}
   */
  beside(world, delta) {
    const unitsPerPixel = this.toCamera(world)[2] / this.focal;
    return add(world, rotate(this.quaternion, scale(delta, unitsPerPixel)));
  }

  /** The world point under a pixel, as deep in the view as `like`. @type {(pixel: Pixel, like: Vector) => Vector} */
  under(pixel, like) {
    return this.beside(like, subtract(pixel, this.point(like)));
  }

  /**
   * CSS matrix3d that lays an element of width x height CSS pixels onto the card with these corners, clockwise from the
   * top left one.
   * @type {(corners: Vector[], width: number, height: number) => string}
   */
  cssMatrix([topLeft, topRight, , bottomLeft], width, height) {
    const column = ([x, y, z]) => [this.focal * x + this.centerX * z, this.focal * y + this.centerY * z, 0, z];
    const [origin, right, bottom] = [topLeft, topRight, bottomLeft].map((corner) => column(this.toCamera(corner)));
    const perPixel = (to, count) => to.map((value, i) => (value - origin[i]) / count);
    const matrix = [...perPixel(right, width), ...perPixel(bottom, height), 0, 0, 1, 0, ...origin];
    return `matrix3d(${matrix.map((value) => value.toFixed(8))})`;
  }
}
