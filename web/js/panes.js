// The three views: what each draws, and what a pointer does in it.

import { add, clamp, fromAngles, RAD, rotate, subtract, toAngles } from "./math.js";
import { gestures, prepareCanvas } from "./dom.js";
import { focalLength, niceStep, orbitPose, Painter, Parallel, Perspective } from "./views.js";

const CARD_WIDTH = 416; // pixels of the card's element before it is laid into the world
const REACH = 11; // pixels around a symbol that still hit it

class Pane {
  constructor(host, canvas) {
    Object.assign(this, { host, canvas });
    gestures(canvas, { start: (point, event) => this.start(point, event), end: () => host.endDrag(),
      zoom: (factor, point) => this.zoom(factor, point), pan: (delta) => this.pan(delta) });
  }

  near(world, [x, y]) {
    const at = this.projection.point(world);
    return at !== null && Math.hypot(at[0] - x, at[1] - y) < REACH;
  }

  /** The frame of the camera symbol under a point: the one at the playhead first, then the keyframes. */
  cameraUnder(point) {
    if (this.near(this.host.pose.position, point)) return this.host.frame;
    return this.host.state.keyframes.find((key) => this.near(key.position, point))?.frame;
  }
}

/** The world from outside (drag to orbit), or through the camera (drag to look around). */
export class WorldPane extends Pane {
  constructor(host, canvas, card, frame) {
    super(host, canvas);
    Object.assign(this, { card, frame });
  }

  fit({ center, extent }) {
    const target = add(center, rotate(this.host.state.keyframes[0].quaternion, [0, 0, extent * 0.3]));
    this.orbit = { target, yaw: -38, pitch: -24, range: extent * 3 };
  }

  zoom(factor) {
    this.orbit.range /= this.host.inside ? 1 : factor;
    this.host.redraw();
  }

  pan([dx, dy]) {
    const step = this.orbit.range / this.projection.focal;
    const shift = rotate(orbitPose(this.orbit).quaternion, [-dx * step, -dy * step, 0]);
    if (!this.host.inside) this.orbit.target = add(this.orbit.target, shift);
    this.host.redraw();
  }

  start(point, event) {
    const { host } = this;
    const degrees = (pixels) => pixels / this.projection.focal / RAD;
    if (host.inside) return (_, [dx, dy]) => host.lookBy(degrees(dx), degrees(-dy));
    const frame = this.cameraUnder(point);
    if (frame !== undefined) host.scrub(frame);
    if (event.shiftKey || event.button > 0) return (_, delta) => this.pan(delta);
    return (_, [dx, dy]) => {
      Object.assign(this.orbit, { yaw: this.orbit.yaw + dx * 0.4, pitch: clamp(this.orbit.pitch - dy * 0.4, -89, 89) });
      host.redraw();
    };
  }

  draw(scene, theme) {
    const { context, width, height } = prepareCanvas(this.canvas), { aspect, inside, flight, pose, state } = this.host;
    const frameWidth = Math.min(width * 0.94, height * 0.9 * aspect);
    this.projection = inside
      ? new Perspective(pose, focalLength(frameWidth, state.fov_deg), width, height)
      : new Perspective(orbitPose(this.orbit), 1.1 * Math.min(width, height * 1.4), width, height);
    Object.assign(this.frame.style, { width: `${frameWidth}px`, height: `${frameWidth / aspect}px` });
    this.frame.hidden = !inside;
    this.#layCard(scene, CARD_WIDTH, CARD_WIDTH / aspect);
    const painter = new Painter(context, this.projection, theme), { center, ground, extent } = scene.sizes;
    painter.grid([0, 2], [center[0], ground, center[2]], niceStep(extent / 5), 10);
    const stems = scene.cameras.flatMap(({ apex: [x, y, z] }) => [[x, y, z], [x, ground, z]]);
    if (!inside) painter.segments(stems, theme.axis);
    painter.path(scene, flight?.poses);
    painter.cameras(scene);
    if (!inside) painter.current(scene.camera(pose));
  }

  #layCard({ card }, width, height) {
    const transform = this.projection.cssMatrix(card, width, height);
    Object.assign(this.card.style, { width: `${width}px`, height: `${height}px`, transform });
  }
}

/** A plan from above or from the side: drag cameras and their look handles, drag the ground to pan. */
export class PlanPane extends Pane {
  constructor(host, canvas, plane) {
    super(host, canvas);
    this.plane = plane;
  }

  fit({ center }) { Object.assign(this, { center, focal: 0 }); }

  get projection() {
    return new Parallel(this.plane, this.center, this.focal, this.canvas.clientWidth, this.canvas.clientHeight);
  }

  zoom(factor, [x, y]) {
    const before = this.projection.under(x, y, this.center);
    this.focal *= factor;
    this.center = add(this.center, subtract(before, this.projection.under(x, y, this.center)));
    this.host.redraw();
  }

  pan([dx, dy]) {
    const { cx, cy } = this.projection;
    this.center = this.projection.under(cx - dx, cy - dy, this.center);
    this.host.redraw();
  }

  start(point) {
    const { host } = this, gesture = {};
    if (!host.flight && this.near(host.scene.handle(host.pose), point)) return (now) => this.#aim(now, gesture);
    const frame = host.flight ? undefined : this.cameraUnder(point);
    if (frame === undefined) return (_, delta) => this.pan(delta);
    host.scrub(frame);
    return (now) => this.#move(this.projection.under(...now, host.pose.position), gesture);
  }

  get #step() { return this.projection.gridStep / 2; }

  #move(wanted, gesture) {
    const position = this.host.snap ? wanted.map((value) => Math.round(value / this.#step) * this.#step) : wanted;
    this.host.setPose({ ...this.host.pose, position }, gesture);
  }

  /** Turns the camera towards the pointer within this plane: yaw from above, pitch from the side. */
  #aim(now, gesture) {
    const { position, quaternion } = this.host.pose;
    const [x, y, z] = subtract(this.projection.under(...now, position), position);
    const angles = toAngles(quaternion), round = this.host.snap ? 5 : 0.1;
    const turned = this.plane.horizontal === 0 ? 0 : 1;
    angles[turned] = Math.round((turned ? Math.atan2(-y, Math.abs(z)) : Math.atan2(x, z)) / RAD / round) * round;
    this.host.setPose({ position, quaternion: fromAngles(...angles) }, gesture);
  }

  /** Moves the camera at the playhead half a grid square right and down (or left and up) this view. */
  nudge(right, down) {
    const { focal } = this.projection, [x, y] = this.projection.point(this.host.pose.position);
    const pixels = this.#step * focal;
    this.#move(this.projection.under(x + right * pixels, y + down * pixels, this.host.pose.position), null);
  }

  draw(scene, theme) {
    const { context, width, height } = prepareCanvas(this.canvas), { host, plane: { horizontal, vertical } } = this;
    const { low, high, extent } = scene.sizes, span = (axis) => high[axis] - low[axis] + extent * 0.45;
    this.focal ||= Math.min(width / span(horizontal), height / span(vertical));
    const { projection } = this, step = projection.gridStep, painter = new Painter(context, projection, theme);
    const reach = Math.ceil(Math.max(width, height) / 2 / projection.focal / step) + 1;
    painter.grid([horizontal, vertical], this.center, step, reach);
    painter.polygon(scene.card, theme.accentFill, theme.muted);
    painter.path(scene, host.flight?.poses);
    painter.cameras(scene);
    painter.current(scene.camera(host.pose), host.flight ? null : scene.handle(host.pose));
  }
}
