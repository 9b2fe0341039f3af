// Turns the picture that is there as mouse, keys and sticks ask, until frames that know of it come: a homography of the
// known lens, by a transform of the canvas. What is seen never jumps: the frames' own turns are taken off, and what is
// guessed wrongly is eased out.

const MOST = [20, 12]; // degrees of yaw and pitch that a picture is turned by: further its edge would be seen too much
const EASED = 4, LEAST_SPEED = 4, MOST_SPEED = 40; // of the rest a second; degrees a second
const LONGEST_MS = 33; // that one picture of the display counts for, where a browser draws seldom
const STEEPEST = 85; // degrees up and down that the walk's camera looks
const LATENCY_MS = 280; // from a turn to its frames, until it is measured
const RADIANS = Math.PI / 180;

const clamp = (value, most) => Math.max(-most, Math.min(most, value));
/** Degrees from -180 to 180. */
const wrapped = (degrees) => ((degrees % 360) + 540) % 360 - 180;

export class Turn {
  /** A picture that is not turned. */
  constructor() {
    this.latency = LATENCY_MS;
    this.clear();
  }

  /** Another walk begins, or this one stands elsewhere. */
  clear() {
    this.camera = null; // yaw and pitch of the frame that is seen
    this.offset = [0, 0]; // by which the picture is turned, in degrees right and up
    this.asked = []; // { at, turn } of the last turns that were asked for
  }

  /** What is seen looks so many degrees further right and up. @param {[number, number]} turn @param {number} now */
  ask(turn, now) {
    if (!this.camera || !turn.some(Boolean)) return;
    const pitch = this.camera[1] + this.offset[1];
    const allowed = [turn[0], Math.max(-STEEPEST, Math.min(STEEPEST, pitch + turn[1])) - pitch];
    this.asked.push({ at: now, turn: allowed });
    this.#move(allowed);
  }

  /** A frame is seen. @param {number[] | null} camera  its x, y, z, yaw and pitch, as the server has them */
  seen(camera) {
    if (!camera) { this.clear(); return; }
    const [yaw, pitch] = camera.slice(3).map((hundredths) => hundredths / 100);
    if (this.camera) this.#move([-wrapped(yaw - this.camera[0]), this.camera[1] - pitch]);
    this.camera = [yaw, pitch];
  }

  /** Eases out what no frame on its way will turn by. @param {number} now @param {number} elapsed  milliseconds */
  ease(now, elapsed) {
    this.asked = this.asked.filter(({ at }) => now - at < this.latency);
    const ahead = [0, 1].map((axis) => this.asked.reduce((sum, { turn }) => sum + turn[axis], 0));
    this.#move(this.offset.map((offset, axis) => {
      const rest = offset - clamp(ahead[axis], MOST[axis]);
      const speed = Math.min(MOST_SPEED, Math.max(LEAST_SPEED, EASED * Math.abs(rest)));
      return -clamp(rest, (speed * Math.min(elapsed, LONGEST_MS)) / 1000);
    }));
  }

  /** The transform of a picture of so many pixels. @param {{ width: number, height: number, lens: number[] }} facts
   * @param {number} scale  pixels of the page for one of the walk's */
  style({ lens: [fx, fy] }, scale) {
    if (!this.camera || Math.hypot(...this.offset) < 0.01) return "";
    const [pitch, turned] = [this.camera[1], this.camera[1] + this.offset[1]];
    const between = product(about("x", -turned), product(about("y", -this.offset[0]), about("x", pitch)));
    const [x, y] = [fx * scale, fy * scale];
    const [[a, b, c], [d, e, f], [g, h, i]] = between;
    const flat = [[a, (b * x) / y, c * x], [(d * y) / x, e, f * y], [g / x, h / y, i]];
    return `matrix3d(${[...matrix4(flat)].map((value) => value.toPrecision(8)).join(",")})`;
  }

  #move(turn) {
    this.offset = this.offset.map((offset, axis) => clamp(offset + turn[axis], MOST[axis]));
  }
}

/** The rotation about an axis: x downwards to the front turns up, y turns right, as in the walk's camera. */
export function about(axis, degrees) {
  const [sin, cos] = [Math.sin(degrees * RADIANS), Math.cos(degrees * RADIANS)];
  return axis === "x" ? [[1, 0, 0], [0, cos, -sin], [0, sin, cos]] : [[cos, 0, sin], [0, 1, 0], [-sin, 0, cos]];
}

/** The product of two 3 x 3 matrices. */
export const product = (one, other) => one.map((row) => [0, 1, 2].map((column) => (
  row.reduce((sum, value, index) => sum + value * other[index][column], 0))));

/** A homography of the plane as CSS has it: columns of a 4 x 4 matrix. */
const matrix4 = ([[a, b, c], [d, e, f], [g, h, i]]) => [a, d, 0, g, b, e, 0, h, 0, 0, 1, 0, c, f, 0, i];
