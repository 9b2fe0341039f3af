// Drawing: the scene made once per edit, its projections (perspective, top, side), and the brush for 2D canvases.

import { add, conjugate, distance, fromAngles, mixVectors, RAD, rotate, scale, subtract } from "./math.js";
import { samplePath } from "./state.js";

const NEAR = 0.02;
const START_COLOR = [70, 205, 190], END_COLOR = [250, 170, 80];
const timeColor = (t) => `rgb(${mixVectors(START_COLOR, END_COLOR, t).map(Math.round)})`;

/** 1, 2 or 5 times a power of ten, at least `length`. */
export function niceStep(length) {
  const power = 10 ** Math.floor(Math.log10(length));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= length * 0.999);
}

/** Measures that should not change while something is dragged: bounds, symbol size, where ground and card lie. */
export function measure(state) {
  const along = (bound) => [0, 1, 2].map((axis) => bound(...state.keyframes.map((key) => key.position[axis])));
  const low = along(Math.min), high = along(Math.max), extent = Math.max(distance(low, high), 0.5);
  const ground = high[1] + extent * 0.18, center = mixVectors(low, high, 0.5);
  return { low, high, extent, ground, center, symbol: extent * 0.07, cardDepth: extent * 1.3 };
}

function frustum({ position, quaternion }, size, fov, aspect) {
  const x = size * Math.tan((fov * RAD) / 2), y = x / aspect;
  const at = (...local) => add(position, rotate(quaternion, local));
  const corners = [at(-x, -y, size), at(x, -y, size), at(x, y, size), at(-x, y, size)];
  const up = [at(-x * 0.4, -y * 1.15, size), at(0, -y * 1.6, size), at(x * 0.4, -y * 1.15, size)];
  return { apex: position, corners, up };
}

/** Everything drawn that depends on the state alone, so that orbiting only projects and strokes. */
export function buildScene(state, sizes, aspect) {
  const camera = (pose, size = sizes.symbol) => frustum(pose, size, state.fov_deg, aspect);
  return {
    state, sizes, camera,
    path: samplePath(state).map((pose) => pose.position),
    cameras: state.keyframes.map((key) => ({ ...camera(key), time: key.frame / (state.frames - 1) })),
    card: camera(state.keyframes[0], sizes.cardDepth).corners,
    handle: ({ position, quaternion }) => add(position, rotate(quaternion, [0, 0, sizes.symbol * 2.5])),
  };
}

/** The orbit view's own camera: it looks at `target` from a distance, under yaw and pitch in degrees. */
export function orbitPose({ target, yaw, pitch, range }) {
  const quaternion = fromAngles(yaw, pitch);
  return { position: subtract(target, rotate(quaternion, [0, 0, range])), quaternion };
}

export const focalLength = (width, fov) => width / 2 / Math.tan((fov * RAD) / 2);

/** A pinhole camera at a pose: world points to camera space (z = depth), camera space to pixels. */
export class Perspective {
  constructor({ position, quaternion }, focal, width, height) {
    Object.assign(this, { position, inverse: conjugate(quaternion), focal, cx: width / 2, cy: height / 2 });
  }

  toCamera(point) { return rotate(this.inverse, subtract(point, this.position)); }

  toScreen([x, y, z]) { return [this.cx + (this.focal * x) / z, this.cy + (this.focal * y) / z]; }

  /** Pixels of a world point, null behind the eye. */
  point(world) {
    const local = this.toCamera(world);
    return local[2] > NEAR ? this.toScreen(local) : null;
  }

  /** CSS matrix3d that lays a width x height element onto the card with these corners (clockwise from top left). */
  cssMatrix([topLeft, topRight, , bottomLeft], width, height) {
    const origin = this.toCamera(topLeft);
    const across = scale(subtract(this.toCamera(topRight), origin), 1 / width);
    const down = scale(subtract(this.toCamera(bottomLeft), origin), 1 / height);
    const column = ([x, y, z]) => [this.focal * x + this.cx * z, this.focal * y + this.cy * z, 0, z];
    return `matrix3d(${[...column(across), ...column(down), 0, 0, 1, 0, ...column(origin)].map((v) => v.toFixed(8))})`;
  }
}

export const TOP = { horizontal: 0, vertical: 2, sign: -1 };
export const SIDE = { horizontal: 2, vertical: 1, sign: 1 };

/** A parallel view along one axis: the plane says which world axes run right and (by sign) down the screen. */
export class Parallel {
  constructor(plane, center, focal, width, height) {
    Object.assign(this, { plane, center, focal, cx: width / 2, cy: height / 2 });
  }

  toCamera(p) {
    const { horizontal, vertical, sign } = this.plane;
    return [p[horizontal] - this.center[horizontal], sign * (p[vertical] - this.center[vertical]), 1];
  }

  toScreen([x, y]) { return [this.cx + this.focal * x, this.cy + this.focal * y]; }

  point(world) { return this.toScreen(this.toCamera(world)); }

  /** The world point under a pixel, its third coordinate taken from `like`. */
  under(x, y, like) {
    const { horizontal, vertical, sign } = this.plane, point = [...like];
    point[horizontal] = this.center[horizontal] + (x - this.cx) / this.focal;
    point[vertical] = this.center[vertical] + (sign * (y - this.cy)) / this.focal;
    return point;
  }

  get gridStep() { return niceStep(28 / this.focal); }
}

export class Painter {
  constructor(context, projection, theme) { Object.assign(this, { context, projection, theme }); }

  /** Strokes world segments [a, b, a, b, ...] in one go, cut where they pass behind the eye. */
  segments(points, color, width = 1) {
    const { context, projection } = this;
    context.beginPath();
    for (let i = 0; i < points.length; i += 2) {
      let a = projection.toCamera(points[i]), b = projection.toCamera(points[i + 1]);
      if (a[2] < NEAR && b[2] < NEAR) continue;
      if (a[2] < NEAR) a = mixVectors(a, b, (NEAR - a[2]) / (b[2] - a[2]));
      if (b[2] < NEAR) b = mixVectors(b, a, (NEAR - b[2]) / (a[2] - b[2]));
      context.moveTo(...projection.toScreen(a));
      context.lineTo(...projection.toScreen(b));
    }
    Object.assign(context, { strokeStyle: color, lineWidth: width });
    context.stroke();
  }

  #fill(fill, stroke) {
    Object.assign(this.context, { fillStyle: fill, strokeStyle: stroke, lineWidth: 1.5 });
    this.context.fill();
    this.context.stroke();
  }

  polygon(points, fill, stroke) {
    const screen = points.map((point) => this.projection.point(point));
    if (screen.includes(null)) return;
    this.context.beginPath();
    screen.forEach(([x, y]) => this.context.lineTo(x, y));
    this.context.closePath();
    this.#fill(fill, stroke);
  }

  dot(world, radius, fill, ring) {
    const at = this.projection.point(world);
    if (!at) return;
    this.context.beginPath();
    this.context.arc(...at, radius, 0, 2 * Math.PI);
    this.#fill(fill, ring);
  }

  /** Lines `step` apart around a point, spanned by two world axes. */
  grid([across, along], around, step, reach) {
    const middle = [...around], lines = [];
    for (const axis of [across, along]) middle[axis] = Math.round(around[axis] / step) * step;
    for (let offset = -reach; offset <= reach; offset += 1) {
      for (const [axis, other] of [[across, along], [along, across]]) {
        for (const end of [-reach, reach]) {
          const point = [...middle];
          point[axis] += offset * step;
          point[other] += end * step;
          lines.push(point);
        }
      }
    }
    this.segments(lines, this.theme.grid);
  }

  /** The path from its start colour to its end colour, with a dot at each second; and what is being flown. */
  path({ path, state: { fps } }, flown = []) {
    this.segments(flown.slice(1).flatMap(({ position }, i) => [flown[i].position, position]), this.theme.accent, 2.2);
    const chunk = Math.max(1, Math.ceil(path.length / 24));
    for (let start = 0; start + 1 < path.length; start += chunk) {
      const run = path.slice(start, start + chunk + 1);
      this.segments(run.slice(1).flatMap((point, i) => [run[i], point]), timeColor(start / path.length), 2.2);
    }
    let label = [-Infinity, 0];
    for (let second = 1; Math.round(second * fps) < path.length; second += 1) {
      const point = path[Math.round(second * fps)], at = this.projection.point(point);
      if (!at || Math.hypot(at[0] - label[0], at[1] - label[1]) < 24) continue;
      this.dot(point, 1.5, this.theme.text, this.theme.text);
      this.context.fillText(`${second}s`, at[0] + 5, at[1] - 6);
      label = at;
    }
  }

  cameras({ cameras }) {
    const outline = ({ apex, corners: [a, b, c, d] }) => [apex, a, apex, b, apex, c, apex, d, a, b, b, c, c, d, d, a];
    this.segments(cameras.flatMap(outline), this.theme.key);
    for (const { apex, time } of cameras) this.dot(apex, 3.5, timeColor(time), this.theme.background);
  }

  /** The camera at the playhead, with the handle that turns it where there is one. */
  current({ apex, corners, up }, handle) {
    const { accent, accentFill, background } = this.theme;
    this.polygon(corners, accentFill, accent);
    this.polygon(up, accent, accent);
    this.segments([...corners.flatMap((corner) => [apex, corner]), apex, handle ?? apex], accent, 1.5);
    this.dot(apex, 5, accent, background);
    if (handle) this.dot(handle, 4, background, accent);
  }
}
