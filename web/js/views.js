// Drawing: the scene made once per edit, and views of it, perspective or parallel, that draw on 2D canvases.

import { add, distance, fromAngles, mixVectors, RAD, rotate, scale, subtract } from "./math.js";
import { samplePath } from "./state.js";

const NEAR = 0.02, START_COLOR = [70, 205, 190], END_COLOR = [250, 170, 80];
const timeColor = (t) => `rgb(${mixVectors(START_COLOR, END_COLOR, t).map(Math.round)})`;
/** The planes of the parallel views: how they are turned and which world axes run across and along the screen. */
export const TOP = { quaternion: fromAngles(0, -90), axes: [0, 2] };
export const SIDE = { quaternion: fromAngles(-90, 0), axes: [2, 1] };

/** 1, 2 or 5 times a power of ten, at least `length`. */
export function niceStep(length) {
  const power = 10 ** Math.floor(Math.log10(length));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= length * 0.999);
}

/** Measures that should not change while something is dragged: bounds, symbol size, where ground and card lie. */
export function measure({ keyframes }) {
  const along = (bound) => [0, 1, 2].map((axis) => bound(...keyframes.map((key) => key.position[axis])));
  const low = along(Math.min), high = along(Math.max), extent = Math.max(distance(low, high), 0.5);
  const sizes = { low, high, extent, symbol: extent * 0.08, cardDepth: extent * 1.3 };
  return { ...sizes, ground: high[1] + extent * 0.18, center: mixVectors(low, high, 0.5) };
}

/** Everything drawn that depends on the state alone, so that orbiting only projects and strokes. */
export function buildScene(state, sizes, aspect) {
  const wide = Math.tan((state.fov_deg * RAD) / 2), high = wide / aspect;
  const camera = ({ position, quaternion, frame }, size = sizes.symbol) => {
    const at = ([x, y]) => add(position, rotate(quaternion, [x * wide * size, y * high * size, size]));
    return { apex: position, time: frame / (state.frames - 1), corners: [[-1, -1], [1, -1], [1, 1], [-1, 1]].map(at),
      get roof() { return [[-0.4, -1.15], [0, -1.6], [0.4, -1.15]].map(at); } };
  };
  return {
    state, sizes, camera,
    path: samplePath(state).map((pose) => pose.position),
    cameras: state.keyframes.map((key) => camera(key)),
    card: camera(state.keyframes[0], sizes.cardDepth).corners,
    handle: ({ position, quaternion }) => add(position, rotate(quaternion, [0, 0, sizes.symbol * 2.5])),
  };
}

/** A camera at a pose: world points to camera space (z = depth, 1 if `flat`: parallel), camera space to pixels. */
export class View {
  constructor({ position, quaternion }, focal, width, height, flat = false) {
    const axes = [[1, 0, 0], [0, 1, 0], [0, 0, 1]].map((axis) => rotate(quaternion, axis));
    Object.assign(this, { position, quaternion, axes, focal, cx: width / 2, cy: height / 2, flat });
  }

  toCamera(point) {
    const [dx, dy, dz] = subtract(point, this.position), [right, down, ahead] = this.axes;
    const along = (axis) => axis[0] * dx + axis[1] * dy + axis[2] * dz;
    return [along(right), along(down), this.flat ? 1 : along(ahead)];
  }

  toScreen([x, y, z]) { return [this.cx + (this.focal * x) / z, this.cy + (this.focal * y) / z, 0]; }
  /** Pixels [x, y, 0] of a world point, null behind the eye. */
  point(world) {
    const local = this.toCamera(world);
    return local[2] > NEAR ? this.toScreen(local) : null;
  }

  /** The world point that is [dx, dy, 0] pixels from another one on the screen, as deep in the view. */
  beside(world, delta) {
    return add(world, rotate(this.quaternion, scale(delta, this.toCamera(world)[2] / this.focal)));
  }
  /** The world point under a pixel, as deep in the view as `like`. */
  under(pixel, like) { return this.beside(like, subtract(pixel, this.point(like))); }
  /** CSS matrix3d that lays a width x height element onto the card with these corners (clockwise from top left). */
  cssMatrix([topLeft, topRight, , bottomLeft], width, height) {
    const column = ([x, y, z]) => [this.focal * x + this.cx * z, this.focal * y + this.cy * z, 0, z];
    const [origin, right, bottom] = [topLeft, topRight, bottomLeft].map((corner) => column(this.toCamera(corner)));
    const step = (to, count) => to.map((value, i) => (value - origin[i]) / count);
    const matrix = [...step(right, width), ...step(bottom, height), 0, 0, 1, 0, ...origin];
    return `matrix3d(${matrix.map((value) => value.toFixed(8))})`;
  }

  /** Has the methods below draw on a 2D context, in the colours of a theme. */
  on(context, theme) { return Object.assign(this, { context, theme }); }
  /** Strokes world polylines in one go, cut where they pass behind the eye. */
  strokes(lines, color, width = 1) {
    this.context.beginPath();
    for (const line of lines) {
      const points = line.map((point) => this.toCamera(point));
      for (let i = 1; i < points.length; i += 1) this.#edge(points[i - 1], points[i]);
    }
    Object.assign(this.context, { strokeStyle: color, lineWidth: width });
    this.context.stroke();
  }

  #edge(a, b) {
    if (a[2] < NEAR && b[2] < NEAR) return;
    const cut = (from, to) => (from[2] < NEAR ? mixVectors(from, to, (NEAR - from[2]) / (to[2] - from[2])) : from);
    this.context.moveTo(...this.toScreen(cut(a, b)));
    this.context.lineTo(...this.toScreen(cut(b, a)));
  }

  /** Fills and outlines a world polygon, or a disc of some pixels about one point; nothing if it is behind the eye. */
  shape(points, fill, outline, radius = 0) {
    const { context } = this, screen = points.map((point) => this.point(point));
    if (screen.includes(null)) return;
    context.beginPath();
    for (const [x, y] of screen) radius ? context.arc(x, y, radius, 0, 2 * Math.PI) : context.lineTo(x, y);
    context.closePath();
    Object.assign(context, { fillStyle: fill, strokeStyle: outline, lineWidth: 1.5 });
    context.fill();
    context.stroke();
  }

  /** A square grid around a point, `reach` steps each way along two world axes. */
  grid([across, along], around, step, reach) {
    const snapped = (axis) => Math.round(around[axis] / step) * step;
    const point = (i, k) => around.with(across, snapped(across) + i * step).with(along, snapped(along) + k * step);
    const lines = (i) => [[point(i, -reach), point(i, reach)], [point(-reach, i), point(reach, i)]];
    this.strokes(Array.from({ length: 2 * reach + 1 }, (_, i) => lines(i - reach)).flat(), this.theme.grid);
  }

  /** The path from its start colour to its end colour, with a dot at each second; and what is being flown. */
  path({ path, state: { fps } }, flown = []) {
    const { length } = path, chunk = Math.ceil(length / 24), stride = Math.ceil(length / 480);
    for (let i = 0; i < length - 1; i += chunk) {
      const run = path.slice(i, i + chunk + 1).filter((_, k, all) => k % stride === 0 || k === all.length - 1);
      this.strokes([run], timeColor(i / length), 2.2);
    }
    this.strokes([flown.map((pose) => pose.position)], this.theme.accent, 2.2);
    let label = [-Infinity, 0];
    for (let second = 1; Math.round(second * fps) < path.length; second += 1) {
      const point = path[Math.round(second * fps)], at = this.point(point);
      if (!at || Math.hypot(at[0] - label[0], at[1] - label[1]) < 24) continue;
      this.shape([point], this.theme.text, this.theme.text, 1.5);
      this.context.fillText(`${second}s`, at[0] + 5, at[1] - 6);
      label = at;
    }
  }

  cameras({ cameras }) {
    const outline = ({ apex, corners: [a, b, c, d] }) => [[apex, a, b, apex, c, d, apex], [b, c], [d, a]];
    this.strokes(cameras.flatMap(outline), this.theme.key);
    for (const { apex, time } of cameras) this.shape([apex], timeColor(time), this.theme.background, 3.5);
  }

  /** The camera at the playhead, with the handle that turns it where there is one. */
  current({ apex, corners, roof }, handle) {
    const { accent, accentFill, background } = this.theme;
    this.shape(corners, accentFill, accent);
    this.shape(roof, accent, accent);
    this.strokes([...corners, handle ?? apex].map((point) => [apex, point]), accent, 1.5);
    this.shape([apex], accent, background, 5);
    if (handle) this.shape([handle], background, accent, 4);
  }
}
