// The views from above and from the side.

import { niceStep } from "../drawing/scene.js";
import { Painter } from "../drawing/painter.js";
import { View } from "../drawing/view.js";
import { fromAngles, heldPitch, toAngles } from "../math/quaternions.js";
import { add, RAD, scale, subtract } from "../math/vectors.js";
import { Pane } from "./pane.js";

const GRID_PIXELS = 28; // that a square of the grid has at least
const SNAP_DEGREES = 5;
const FREE_DEGREES = 0.1;

/** A parallel view, `range` world units a pixel: drag cameras and their handles, drag elsewhere to pan. */
export class PlanPane extends Pane {
  /** @param {import("../drawing/view.js").Plane} plane */
  constructor(host, canvas, plane) {
    super(host, canvas);
    this.plane = plane;
  }

  fit({ center, low, high, extent }) {
    super.fit();
    const [across, along] = this.plane.axes.map((axis) => high[axis] - low[axis] + extent * 0.45);
    this.center = center;
    this.range = Math.max(across / this.width, along / this.height);
  }

  get view() {
    const pose = { position: this.center, quaternion: this.plane.quaternion };
    return new View(pose, 1 / this.range, this.width, this.height, true);
  }

  /** World units of a square of the grid. */
  get #gridStep() {
    return niceStep(GRID_PIXELS * this.range);
  }

  start(point, event) {
    const { host } = this;
    if (event.button > 0) return (_, delta) => this.pan(delta);
    const gesture = {};
    const onHandle = !host.flight && this.isNear(host.scene.handle(host.pose), point);
    if (onHandle) {
      this.#endPlayback();
      return this.editing((now) => this.#aim(now, gesture));
    }
    const frame = host.flight ? undefined : this.cameraUnder(point);
    if (frame === undefined) return (_, delta) => this.pan(delta);
    host.scrub(frame);
    const grip = subtract(this.view.point(host.pose.position), point); // the pointer keeps hold of where it took it
    return this.editing((now) => this.#place(this.view.under(add(now, grip), host.pose.position), gesture));
  }

  /** Moves the camera at the playhead to a position, snapped to half grid squares where that is on. */
  #place(wanted, gesture) {
    const { pose, snap } = this.host;
    const step = this.#gridStep / 2;
    const position = snap ? wanted.map((value) => Math.round(value / step) * step) : wanted;
    this.host.setPose({ ...pose, position }, gesture);
  }

  /** What moves a camera is meant for the frame of now. */
  #endPlayback() {
    if (this.host.playing !== null) this.host.scrub(this.host.frame);
  }

  /** Moves the camera at the playhead half a grid square; `arrow` is [right, down, 0] in this view. */
  nudge(arrow) {
    this.#endPlayback();
    const pixels = scale(arrow, this.#gridStep / 2 / this.range);
    this.#place(this.view.beside(this.host.pose.position, pixels));
  }

  /** Turns the camera towards a pixel within this plane: its yaw from above, its pitch from the side. */
  #aim(pixel, gesture) {
    const { pose: { position, quaternion }, snap } = this.host;
    const [x, y, z] = subtract(this.view.under(pixel, position), position);
    const isTop = this.plane.axes[0] === 0;
    const angle = (isTop ? Math.atan2(x, z) : Math.atan2(-y, Math.abs(z))) / RAD;
    const step = snap ? SNAP_DEGREES : FREE_DEGREES;
    const rounded = Math.round(angle / step) * step;
    const angles = toAngles(quaternion).with(isTop ? 0 : 1, isTop ? rounded : heldPitch(rounded));
    this.host.setPose({ position, quaternion: fromAngles(...angles) }, gesture);
  }

  draw(scene, theme) {
    const { host } = this;
    const painter = new Painter(this.view, this.clear(), theme);
    this.#drawGrid(painter);
    painter.polygon(scene.card, theme.accentFill, theme.muted);
    painter.path(scene);
    if (host.flight) painter.flown(host.flight.poses);
    painter.cameras(scene);
    painter.current(scene.camera(host.pose), host.flight ? null : scene.handle(host.pose));
  }

  #drawGrid(painter) {
    const step = this.#gridStep;
    const halfView = (Math.max(this.width, this.height) / 2) * this.range;
    painter.grid(this.plane.axes, this.center, step, Math.ceil(halfView / step) + 1);
  }
}
