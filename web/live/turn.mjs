// Turns the picture that is there as mouse, keys and sticks ask, until frames that know of it come: a homography of the
// known lens. What is seen never jumps: the frames' own turns are taken off, and what is guessed wrongly is eased out.

const MOST = [20, 12]; // degrees of yaw and pitch that a picture is turned by: further its edge would be seen too much
const EASED = 4, LEAST_SPEED = 4, MOST_SPEED = 40; // of the rest a second; degrees a second
const LONGEST_MS = 33; // that one picture of the display counts for, where a browser draws seldom
const STEEPEST = 85; // degrees up and down that the walk's camera looks
const LATENCY_MS = 280; // from a turn to its frames, until it is measured
const RED_BLUE = 0xff00ff, GREEN = 0xff00, OPAQUE = 0xff000000; // of a pixel of 32 bits
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

  /** The homography from what is seen to the picture, in pixels from the lens's centre; null where nothing is turned.
   * @param {number[]} lens  fx and fy in pixels */
  homography([fx, fy]) {
    if (!this.camera || Math.hypot(...this.offset) < 0.01) return null;
    const [pitch, turned] = [this.camera[1], this.camera[1] + this.offset[1]];
    const between = product(about("x", -pitch), product(about("y", this.offset[0]), about("x", turned)));
    const [[a, b, c], [d, e, f], [g, h, i]] = between;
    return [[a, (b * fx) / fy, c * fx], [(d * fy) / fx, e, f * fy], [g / fx, h / fy, i]];
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

/** Fills an image with another one as a homography has it; mirrored where the other one ends. In CSS every pixel of the
 * page would be sampled in perspective, which takes 20 ms a frame where no GPU does it.
 * @param {ImageData} from @param {ImageData} to  of the same size
 * @param {number[][]} homography  from pixels of `to` to those of `from`, both from the centre @param {number[]} centre */
export function warp(from, to, [[a, b, c], [d, e, f], [g, h, i]], [centreX, centreY]) {
  const { width, height } = from, source = new Int32Array(from.data.buffer), target = new Int32Array(to.data.buffer);
  const right = width - 1.01, bottom = height - 1.01;
  for (let row = 0, at = 0; row < height; row++) {
    const y = row - centreY;
    for (let column = 0; column < width; column++, at++) {
      const x = column - centreX, scale = 1 / (g * x + h * y + i);
      const u = inside((a * x + b * y + c) * scale + centreX, right), v = inside((d * x + e * y + f) * scale + centreY, bottom);
      const left = u | 0, top = v | 0, across = (256 * (u - left)) | 0, down = (256 * (v - top)) | 0, first = top * width + left;
      const above = mixed(source[first], source[first + 1], across), below = mixed(source[first + width], source[first + width + 1], across);
      target[at] = mixed(above, below, down);
    }
  }
}

/** Two pixels of 32 bits, mixed with so many 256ths of the other one. */
function mixed(one, other, share) {
  const redBlue = (Math.imul(one & RED_BLUE, 256 - share) + Math.imul(other & RED_BLUE, share)) >>> 8;
  const green = (Math.imul(one & GREEN, 256 - share) + Math.imul(other & GREEN, share)) >>> 8;
  return OPAQUE | (redBlue & RED_BLUE) | (green & GREEN);
}

/** A coordinate, mirrored at 0 and at the last one. */
function inside(value, last) {
  const mirrored = value < 0 ? -value : value > last ? 2 * last - value : value;
  return mirrored > 0 ? Math.min(mirrored, last) : 0;
}
