// Drawing: the scene made once per edit, views of it (perspective or parallel), and the brush for 2D canvases.

import { add, conjugate, distance, fromAngles, mixVectors, RAD, rotate, scale, subtract } from "./math.js";
import { samplePath } from "./state.js";

const NEAR = 0.02, START_COLOR = [70, 205, 190], END_COLOR = [250, 170, 80];
const timeColor = (t) => `rgb(${mixVectors(START_COLOR, END_COLOR, t).map(Math.round)})`;

/** Orientations of the parallel views: from above x runs right and z up, from the side z runs right and y down. */
export const TOP = fromAngles(0, -90), SIDE = fromAngles(-90, 0);

export const focalLength = (width, fov) => width / 2 / Math.tan((fov * RAD) / 2);

/** 1, 2 or 5 times a power of ten, at least `length`. */
export function niceStep(length) {
  const power = 10 ** Math.floor(Math.log10(length));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= length * 0.999);
}

/** Measures that should not change while something is dragged: bounds, symbol size, where ground and card lie. */
export function measure({ keyframes }) {
  const along = (bound) => [0, 1, 2].map((axis) => bound(...keyframes.map((key) => key.position[axis])));
  const low = along(Math.min), high = along(Math.max), extent = Math.max(distance(low, high), 0.5);
  const ground = high[1] + extent * 0.18, center = mixVectors(low, high, 0.5);
  return { low, high, extent, ground, center, symbol: extent * 0.08, cardDepth: extent * 1.3 };
}

/** Everything drawn that depends on the state alone, so that orbiting only projects and strokes. */
export function buildScene(state, sizes, aspect) {
  const wide = Math.tan((state.fov_deg * RAD) / 2), high = wide / aspect;
  const camera = ({ position, quaternion }, size = sizes.symbol) => {
    const at = ([x, y]) => add(position, rotate(quaternion, scale([x * wide, y * high, 1], size)));
    return { apex: position, corners: [[-1, -1], [1, -1], [1, 1], [-1, 1]].map(at),
      roof: [[-0.4, -1.15], [0, -1.6], [0.4, -1.15]].map(at) };
  };
  return {
    state, sizes, camera,
    path: samplePath(state).map((pose) => pose.position),
    cameras: state.keyframes.map((key) => ({ ...camera(key), time: key.frame / (state.frames - 1) })),
    card: camera(state.keyframes[0], sizes.cardDepth).corners,
    handle: ({ position, quaternion }) => add(position, rotate(quaternion, [0, 0, sizes.symbol * 2.5])),
  };
}

/** A camera at a pose: world points to camera space, camera space to pixels. With a `depth` parallel: all is so far. */
export class View {
  constructor({ position, quaternion }, focal, width, height, depth = null) {
    Object.assign(this, { position, quaternion, inverse: conjugate(quaternion), focal, cx: width / 2, cy: height / 2 });
    Object.assign(this, { depth, near: depth === null ? NEAR : 0 });
  }

  toCamera(point) {
    const [x, y, z] = rotate(this.inverse, subtract(point, this.position));
    return [x, y, this.depth ?? z];
  }

  toScreen([x, y, z]) { return [this.cx + (this.focal * x) / z, this.cy + (this.focal * y) / z]; }

  /** Pixels of a world point, null behind the eye. */
  point(world) {
    const local = this.toCamera(world);
    return local[2] > this.near ? this.toScreen(local) : null;
  }

  /** The world vector that is [dx, dy] pixels on the screen at a depth. */
  shift(delta, depth) { return rotate(this.quaternion, scale([...delta, 0], depth / this.focal)); }

  /** The world point under a pixel, as deep in the view as the point `like`. */
  under([x, y], like) {
    const local = this.toCamera(like), at = this.toScreen(local);
    return add(like, this.shift([x - at[0], y - at[1]], local[2]));
  }

  /** CSS matrix3d that lays a width x height element onto the card with these corners (clockwise from top left). */
  cssMatrix([topLeft, topRight, , bottomLeft], width, height) {
    const column = ([x, y, z]) => [this.focal * x + this.cx * z, this.focal * y + this.cy * z, 0, z];
    const [origin, right, bottom] = [topLeft, topRight, bottomLeft].map((corner) => column(this.toCamera(corner)));
    const step = (to, count) => to.map((value, i) => (value - origin[i]) / count);
    const matrix = [...step(right, width), ...step(bottom, height), 0, 0, 1, 0, ...origin];
    return `matrix3d(${matrix.map((value) => value.toFixed(8))})`;
  }
}

export class Painter {
  constructor(context, view, theme) { Object.assign(this, { context, view, theme }); }

  /** Strokes world segments [a, b, a, b, ...] in one go, cut where they pass behind the eye. */
  segments(points, color, width = 1) {
    const { context, view, view: { near } } = this;
    context.beginPath();
    for (let i = 0; i < points.length; i += 2) {
      let a = view.toCamera(points[i]), b = view.toCamera(points[i + 1]);
      if (a[2] < near && b[2] < near) continue;
      if (a[2] < near) a = mixVectors(a, b, (near - a[2]) / (b[2] - a[2]));
      if (b[2] < near) b = mixVectors(b, a, (near - b[2]) / (a[2] - b[2]));
      context.moveTo(...view.toScreen(a));
      context.lineTo(...view.toScreen(b));
    }
    Object.assign(context, { strokeStyle: color, lineWidth: width });
    context.stroke();
  }

  /** Strokes a world polyline. */
  line(points, color) { this.segments(points.slice(1).flatMap((point, i) => [points[i], point]), color, 2.2); }

  /** Fills and outlines a world polygon, or a disc of some pixels about one point; nothing if it is behind the eye. */
  shape(points, fill, outline, radius = 0) {
    const { context } = this, screen = points.map((point) => this.view.point(point));
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
    const snap = (value, axis) => (axis === across || axis === along ? Math.round(value / step) * step : value);
    const middle = around.map(snap), lines = [];
    for (let i = -reach; i <= reach; i += 1) {
      for (const [axis, other] of [[across, along], [along, across]]) {
        const end = (far) => middle.with(axis, middle[axis] + i * step).with(other, middle[other] + far * step);
        lines.push(end(-reach), end(reach));
      }
    }
    this.segments(lines, this.theme.grid);
  }

  /** The path from its start colour to its end colour, with a dot at each second; and what is being flown. */
  path({ path, state: { fps } }, flown = []) {
    const chunk = Math.max(1, Math.ceil(path.length / 24));
    for (let i = 0; i + 1 < path.length; i += chunk) this.line(path.slice(i, i + chunk + 1), timeColor(i / path.length));
    this.line(flown.map((pose) => pose.position), this.theme.accent);
    let label = [-Infinity, 0];
    for (let second = 1; Math.round(second * fps) < path.length; second += 1) {
      const point = path[Math.round(second * fps)], at = this.view.point(point);
      if (!at || Math.hypot(at[0] - label[0], at[1] - label[1]) < 24) continue;
      this.shape([point], this.theme.text, this.theme.text, 1.5);
      this.context.fillText(`${second}s`, at[0] + 5, at[1] - 6);
      label = at;
    }
  }

  cameras({ cameras }) {
    const outline = ({ apex, corners: [a, b, c, d] }) => [apex, a, apex, b, apex, c, apex, d, a, b, b, c, c, d, d, a];
    this.segments(cameras.flatMap(outline), this.theme.key);
    for (const { apex, time } of cameras) this.shape([apex], timeColor(time), this.theme.background, 3.5);
  }

  /** The camera at the playhead, with the handle that turns it where there is one. */
  current({ apex, corners, roof }, handle) {
    const { accent, accentFill, background } = this.theme;
    this.shape(corners, accentFill, accent);
    this.shape(roof, accent, accent);
    this.segments([...corners.flatMap((corner) => [apex, corner]), apex, handle ?? apex], accent, 1.5);
    this.shape([apex], accent, background, 5);
    if (handle) this.shape([handle], background, accent, 4);
  }
}
