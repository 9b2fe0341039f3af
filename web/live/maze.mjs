// The golden crate of a maze, painted over the frames where it is seen. Its walls are the server's map: boxes round every
// corner of a grid of rooms. Lengths are in the units of the walk; y points down, and the floor is at y = 0.

import { about, product } from "./turn.mjs";

const NEAR = 0.05, FURTHEST = 14;
const CLEAR = 3, HAZE = 8; // behind so many units the crate pales, over so many
const SAMPLES = [0.1, 0.5, 0.9]; // of the crate's sides: where it is looked for
const FACES = ["#b9842c", "#d9a441", "#f6c95b", "#a97524", "#ffe08a"]; // of -x, +x, -z, +z and the top
const EDGE = "#6d4a12";

/** @typedef {{ room: number, boxes: number[][], goal: number[], at: number[], found: boolean }} MapFacts
 * boxes: x, z, half sizes and height; goal: such a box, of the crate; at: x, y, z and yaw of the walk's first frame */

export class Maze {
  /** @param {MapFacts} map @param {{ lens: number[], width: number }} facts */
  constructor(map, { lens, width }) {
    Object.assign(this, { map, lens, width });
    this.turn = about("y", map.at[3]);
    this.crate = solid(...map.goal);
  }

  /** The crate's x and z in the walk's own units, of which the first frame is the origin. */
  get goal() {
    return this.inWalk(this.map.goal);
  }

  /** A point of the map in the walk's own units. @param {number[]} point  x and z */
  inWalk([x, z]) {
    const [right, , ahead] = transposed(this.turn, [x - this.map.at[0], 0, z - this.map.at[2]]);
    return { x: right, z: ahead };
  }

  /** The walls near a point of the walk, as corners in its own units. @param {{ x: number, z: number }} here */
  walls({ x, z }, within) {
    const [mapX, , mapZ] = apply(this.turn, [x, 0, z]).map((value, axis) => value + this.map.at[axis]);
    const found = this.#around(mapX - within, mapZ - within, mapX + within, mapZ + within).filter(({ height }) => height > 1.5);
    return found.map(({ low, high }) => [[low[0], low[2]], [high[0], low[2]], [high[0], high[2]], [low[0], high[2]]].map((point) => this.inWalk(point)));
  }

  /** Paints the crate over a frame. @param {CanvasRenderingContext2D} context @param {number[] | null} camera */
  paint(context, camera) {
    if (!camera || this.map.found === true) return;
    const eye = apply(this.turn, camera.slice(0, 3).map((value) => value / 1000)).map((value, axis) => value + this.map.at[axis]);
    const away = Math.hypot(this.map.goal[0] - eye[0], this.map.goal[1] - eye[2]);
    if (away > FURTHEST) return;
    const [yaw, pitch] = camera.slice(3).map((value) => value / 100);
    const view = { eye, turn: product(about("y", this.map.at[3] + yaw), about("x", pitch)), lens: this.lens.map((value) => (value * context.canvas.width) / this.width) };
    const faces = seenFaces(this.crate, view), strength = this.#seen(eye) * Math.min(1, Math.exp((CLEAR - away) / HAZE));
    if (!strength || !faces.length) return;
    context.save();
    draw(context, faces, strength, context.canvas.width / 256);
    context.restore();
  }

  /** The share of the crate that no wall hides. A model's frames are not quite where the map is, so the crate pales
   * behind a wall and is not cut off there. */
  #seen(eye) {
    const { low, high } = this.crate, between = this.#between(eye);
    const points = SAMPLES.flatMap((x) => SAMPLES.flatMap((y) => SAMPLES.map((z) => [x, y, z])));
    const clear = points.filter((shares) => {
      const ray = shares.map((share, axis) => low[axis] + share * (high[axis] - low[axis]) - eye[axis]);
      return between.every((box) => meets(box, eye, ray) > 1);
    });
    return clear.length / points.length;
  }

  /** The boxes that may stand between the eye and the crate. */
  #between(eye) {
    const { low, high } = this.crate;
    const bounds = [Math.min(eye[0], low[0]), Math.min(eye[2], low[2]), Math.max(eye[0], high[0]), Math.max(eye[2], high[2])];
    return this.#around(...bounds).filter((box) => box.low[0] < bounds[2] && box.high[0] > bounds[0] && box.low[2] < bounds[3] && box.high[2] > bounds[1]
      && !(box.low[0] === low[0] && box.low[2] === low[2]));
  }

  /** The boxes of the corners in a rectangle of the map, and of those round it. */
  #around(left, near, right, far) {
    const { room, boxes } = this.map, found = [];
    for (let x = Math.floor(left / room); x <= Math.ceil(right / room); x++) {
      for (let z = Math.floor(near / room); z <= Math.ceil(far / room); z++) {
        for (const [atX, atZ, ...sizes] of boxes) found.push(solid(room * x + atX, room * z + atZ, ...sizes));
      }
    }
    return found;
  }
}

const solid = (x, z, halfX, halfZ, height) => ({ low: [x - halfX, -height, z - halfZ], high: [x + halfX, 0, z + halfZ], height });

/** The distance along a ray to a box, in lengths of the ray; infinite where it misses. */
function meets({ low, high }, eye, ray) {
  let enter = 0, leave = Infinity;
  for (let axis = 0; axis < 3; axis++) {
    const inverse = 1 / (ray[axis] || 1e-12), one = (low[axis] - eye[axis]) * inverse, other = (high[axis] - eye[axis]) * inverse;
    enter = Math.max(enter, Math.min(one, other));
    leave = Math.min(leave, Math.max(one, other));
  }
  return enter < leave ? enter : Infinity;
}

/** The faces of a box that look at the eye, each with its corners in pixels. */
function seenFaces({ low: [x0, y0, z0], high: [x1, y1, z1] }, { eye, turn, lens }) {
  const faces = [
    [eye[0] < x0, [[x0, y0, z0], [x0, y0, z1], [x0, y1, z1], [x0, y1, z0]]],
    [eye[0] > x1, [[x1, y0, z0], [x1, y0, z1], [x1, y1, z1], [x1, y1, z0]]],
    [eye[2] < z0, [[x0, y0, z0], [x1, y0, z0], [x1, y1, z0], [x0, y1, z0]]],
    [eye[2] > z1, [[x0, y0, z1], [x1, y0, z1], [x1, y1, z1], [x0, y1, z1]]],
    [eye[1] < y0, [[x0, y0, z0], [x1, y0, z0], [x1, y0, z1], [x0, y0, z1]]],
  ];
  return faces.flatMap(([faced, corners], index) => {
    const points = faced ? beforeEye(corners.map((corner) => transposed(turn, corner.map((value, axis) => value - eye[axis])))) : [];
    return points.length ? [{ colour: FACES[index], points: points.map(([x, y, z]) => [(x / z) * lens[0] + lens[2], (y / z) * lens[1] + lens[3]]) }] : [];
  });
}

/** The part of a polygon that lies before the eye. */
function beforeEye(points) {
  return points.flatMap((point, index) => {
    const next = points[(index + 1) % points.length], share = (NEAR - point[2]) / (next[2] - point[2] || 1e-9);
    const crosses = (point[2] > NEAR) !== (next[2] > NEAR) ? [point.map((value, axis) => value + share * (next[axis] - value))] : [];
    return point[2] > NEAR ? [point, ...crosses] : crosses;
  });
}

function draw(context, faces, strength, width) {
  Object.assign(context, { globalAlpha: strength, lineWidth: width, lineJoin: "round", strokeStyle: EDGE });
  for (const { colour, points } of faces) {
    context.fillStyle = colour;
    for (const size of [1, 0.74]) {
      const middle = [0, 1].map((axis) => points.reduce((sum, point) => sum + point[axis], 0) / points.length);
      context.beginPath();
      for (const point of points) context.lineTo(...point.map((value, axis) => middle[axis] + size * (value - middle[axis])));
      context.closePath();
      if (size === 1) context.fill();
      context.stroke();
    }
  }
}

const apply = (rows, vector) => rows.map((row) => row.reduce((sum, value, index) => sum + value * vector[index], 0));
const transposed = (rows, vector) => [0, 1, 2].map((column) => rows.reduce((sum, row, index) => sum + row[column] * vector[index], 0));
