// Drawing what a view shows on a 2D canvas.

import { mixVectors } from "../math/vectors.js";
import { NEAR } from "./view.js";

/**
 * @typedef {import("../math/vectors.js").Vector} Vector
 * @typedef {import("./scene.js").Scene} Scene
 * @typedef {import("./scene.js").CameraSymbol} CameraSymbol
 * @typedef {Record<string, string>} Theme  CSS colours by name
 */

const START_COLOR = [70, 205, 190];
const END_COLOR = [250, 170, 80];
const PATH_WIDTH = 2.2;
const MOST_COLORS = 24; // of a path, from start to end
const MOST_POINTS = 480; // of a path, however many frames it has
const LABEL_DISTANCE = 24; // pixels between the labels of seconds

const timeColor = (time) => `rgb(${mixVectors(START_COLOR, END_COLOR, time).map(Math.round)})`;

/** Draws world points, as a view sees them, on a 2D context, in the colours of a theme. */
export class Painter {
  /**
   * @param {import("./view.js").View} view
   * @param {CanvasRenderingContext2D} context
   * @param {Theme} theme
   */
  constructor(view, context, theme) {
    this.view = view;
    this.context = context;
    this.theme = theme;
  }

  /** Strokes polylines in one go, cut where they pass behind the eye. @param {Vector[][]} lines */
  strokes(lines, color, width = 1) {
    this.context.beginPath();
    for (const line of lines) {
      const points = line.map((point) => this.view.toCamera(point));
      for (let i = 1; i < points.length; i += 1) this.#edge(points[i - 1], points[i], i === 1);
    }
    this.context.strokeStyle = color;
    this.context.lineWidth = width;
    this.context.stroke();
  }

  /** Adds the part of an edge, given in camera space, that is in front of the eye; it may go on from the one before. */
  #edge(a, b, isFirst) {
    if (a[2] < NEAR && b[2] < NEAR) return;
    const cut = (from, to) => (from[2] < NEAR ? mixVectors(from, to, (NEAR - from[2]) / (to[2] - from[2])) : from);
    if (isFirst || a[2] < NEAR) this.context.moveTo(...this.view.toScreen(cut(a, b)));
    this.context.lineTo(...this.view.toScreen(cut(b, a)));
  }

  /** Fills and outlines a polygon; nothing where a corner is behind the eye. @param {Vector[]} corners */
  polygon(corners, fill, outline) {
    this.#shape(corners, fill, outline, ([x, y]) => this.context.lineTo(x, y));
  }

  /** Fills and outlines a disc of `radius` pixels about a point; nothing where it is behind the eye. */
  disc(center, radius, fill, outline) {
    this.#shape([center], fill, outline, ([x, y]) => this.context.arc(x, y, radius, 0, 2 * Math.PI));
  }

  #shape(points, fill, outline, trace) {
    const pixels = points.map((point) => this.view.point(point));
    if (pixels.includes(null)) return;
    const { context } = this;
    context.beginPath();
    pixels.forEach(trace);
    context.closePath();
    context.fillStyle = fill;
    context.strokeStyle = outline;
    context.lineWidth = 1.5;
    context.fill();
    context.stroke();
  }

  /** A square grid around a point, `reach` steps each way along two world axes. */
  grid([across, along], around, step, reach) {
    const snapped = (axis) => Math.round(around[axis] / step) * step;
    const point = (i, k) => around.with(across, snapped(across) + i * step).with(along, snapped(along) + k * step);
    const lines = [];
    for (let i = -reach; i <= reach; i += 1) {
      lines.push([point(i, -reach), point(i, reach)], [point(-reach, i), point(reach, i)]);
    }
    this.strokes(lines, this.theme.grid);
  }

  /** The path in its colours, with the seconds on it. @param {Scene} scene */
  path({ path, state: { fps } }) {
    const colored = Math.ceil(path.length / MOST_COLORS);
    const stride = Math.ceil(path.length / MOST_POINTS);
    for (let i = 0; i < path.length - 1; i += colored) {
      const part = path.slice(i, i + colored + 1);
      const points = part.filter((_, k) => k % stride === 0 || k === part.length - 1);
      this.strokes([points], timeColor(i / path.length), PATH_WIDTH);
    }
    this.#seconds(path, fps);
  }

  /** A dot and a label at each second, where there is room for them. */
  #seconds(path, fps) {
    const { context, theme, view } = this;
    let label = [-Infinity, 0];
    const step = Math.max(1, Math.ceil(1 / fps)); // where a frame lasts seconds, one of its seconds is enough
    for (let second = step; Math.round(second * fps) < path.length; second += step) {
      const point = path[Math.round(second * fps)];
      const pixel = view.point(point);
      if (!pixel || Math.hypot(pixel[0] - label[0], pixel[1] - label[1]) < LABEL_DISTANCE) continue;
      this.disc(point, 1.5, theme.text, theme.text);
      context.fillText(`${second}s`, pixel[0] + 5, pixel[1] - 6);
      label = pixel;
    }
  }

  /** What has been flown so far. @param {import("../math/spline.js").Pose[]} poses */
  flown(poses) {
    this.strokes([poses.map((pose) => pose.position)], this.theme.accent, PATH_WIDTH);
  }

  /** The keyframes' cameras. @param {Scene} scene */
  cameras({ cameras }) {
    const outlines = ({ apex, corners: [a, b, c, d] }) => [[apex, a, b, apex, c, d, apex], [b, c], [d, a]];
    this.strokes(cameras.flatMap(outlines), this.theme.key);
    for (const { apex, time } of cameras) this.disc(apex, 3.5, timeColor(time), this.theme.background);
  }

  /** The camera at the playhead, with the handle that turns it where there is one. @param {CameraSymbol} camera */
  current({ apex, corners, roof }, handle = null) {
    const { accent, accentFill, background } = this.theme;
    this.polygon(corners, accentFill, accent);
    this.polygon(roof, accent, accent);
    this.strokes([...corners, handle ?? apex].map((point) => [apex, point]), accent, 1.5);
    this.disc(apex, 5, accent, background);
    if (handle) this.disc(handle, 4, background, accent);
  }
}
