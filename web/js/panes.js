// The three views and the time line: what each draws, and what a pointer does in it.

import { add, clamp, fromAngles, mixVectors, RAD, rotate, subtract, toAngles } from "./math.js";
import { gestures } from "./gestures.js";
import { keyframeAt, retimeKeyframe } from "./state.js";
import { focalLength, niceStep, Painter, View } from "./views.js";

const CARD_WIDTH = 416; // pixels of .lbw-card before it is laid into the world
const REACH = 11; // pixels around a symbol that still hit it
const PADDING = 10, KEY_ROW = 11; // pixels of the time line from its sides, and of its diamonds from the bottom

/** A canvas of the editor. Its size is measured when it changes, so that drawing a frame asks nothing of the layout. */
class Pane {
  constructor(host, canvas) {
    Object.assign(this, { host, canvas });
    gestures(canvas, this);
  }

  end() { this.host.onCommit(); }
  pan() {}
  zoom() {}
  fit() {}
  resize() { Object.assign(this, { width: this.canvas.clientWidth, height: this.canvas.clientHeight }); }

  /** The context, cleared, in CSS pixels and as sharp as the zoomed page shows it. */
  clear() {
    const { canvas, host: { sharpness } } = this, context = canvas.getContext("2d");
    const width = Math.round(this.width * sharpness), height = Math.round(this.height * sharpness);
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    context.setTransform(sharpness, 0, 0, sharpness, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    return Object.assign(context, { font: "10px system-ui, sans-serif" });
  }
}

/** A view of the world around `center` from a `range` away; a flat one's range is world units a pixel. */
class SpacePane extends Pane {
  pan(delta) { this.center = subtract(this.center, this.view.shift(delta, this.range)); }

  zoom(factor, point) {
    this.center = mixVectors(this.center, this.view.under(point, this.center), 1 - 1 / factor);
    this.range /= factor;
  }

  /** The view from outside; `flat` makes it parallel. */
  look(focal, flat = false) {
    const { center, quaternion, range, width, height } = this;
    const position = subtract(center, rotate(quaternion, [0, 0, range]));
    return new View({ position, quaternion }, focal, width, height, flat ? range : null);
  }

  near(world, [x, y]) {
    const at = this.view.point(world);
    return at !== null && Math.hypot(at[0] - x, at[1] - y) < REACH;
  }

  /** The frame of the camera symbol under a point: the one at the playhead first, then the keyframes. */
  cameraUnder(point) {
    if (this.near(this.host.pose.position, point)) return this.host.frame;
    return this.host.state.keyframes.find((key) => this.near(key.position, point))?.frame;
  }
}

/** The world from outside (drag to orbit), or through the camera (drag to look around). */
export class WorldPane extends SpacePane {
  fit({ center, extent }) {
    this.center = add(center, rotate(this.host.state.keyframes[0].quaternion, [0, 0, extent * 0.3]));
    this.range = extent * 3;
    this.#orbit(-38, -24);
  }

  #orbit(yaw, pitch) { Object.assign(this, { yaw, pitch, quaternion: fromAngles(yaw, pitch) }); }

  get view() {
    const { width, height, host: { aspect, inside, pose, state } } = this;
    if (!inside) return this.look(1.1 * Math.min(width, height * 1.4));
    const frameWidth = Math.min(width * 0.94, height * 0.9 * aspect); // as .lbw-frame
    return new View(pose, focalLength(frameWidth, state.fov_deg), width, height);
  }

  pan(delta) { if (!this.host.inside) super.pan(delta); }
  zoom(factor, point) { if (!this.host.inside) super.zoom(factor, point); }

  start(point, event) {
    const { host } = this, degrees = (pixels) => pixels / this.view.focal / RAD;
    if (host.inside) return (_, [dx, dy]) => host.lookBy(degrees(dx), degrees(-dy));
    const frame = this.cameraUnder(point);
    if (frame !== undefined) host.scrub(frame);
    if (event.shiftKey || event.button > 0) return (_, delta) => this.pan(delta);
    return (_, [dx, dy]) => this.#orbit(this.yaw + dx * 0.4, clamp(this.pitch - dy * 0.4, -89, 89));
  }

  draw(scene, theme) {
    const { view, host: { aspect, inside, flight, pose } } = this, { center, ground, extent } = scene.sizes;
    this.host.find(".lbw-card").style.transform = view.cssMatrix(scene.card, CARD_WIDTH, CARD_WIDTH / aspect);
    const painter = new Painter(this.clear(), view, theme);
    painter.grid([0, 2], [center[0], ground, center[2]], niceStep(extent / 5), 10);
    if (!inside) painter.segments(scene.cameras.flatMap(({ apex: [x, y, z] }) => [[x, y, z], [x, ground, z]]), theme.axis);
    painter.path(scene, flight?.poses);
    painter.cameras(scene);
    if (!inside) painter.current(scene.camera(pose));
  }
}

/** A plan from above or from the side: drag cameras and their look handles, drag the ground to pan. */
export class PlanPane extends SpacePane {
  /** `axes`: the world axes that run across and along the screen in the orientation `quaternion`. */
  constructor(host, canvas, quaternion, axes) {
    super(host, canvas);
    Object.assign(this, { quaternion, axes });
  }

  resize(sizes) {
    super.resize();
    this.fit(sizes);
  }

  fit({ center, low, high, extent }) {
    const [across, along] = this.axes.map((axis) => high[axis] - low[axis] + extent * 0.45);
    Object.assign(this, { center, range: Math.max(across / this.width, along / this.height) });
  }

  get view() { return this.look(1, true); }
  get #step() { return niceStep(28 * this.range); }

  start(point) {
    const { host } = this, gesture = {};
    if (!host.flight && this.near(host.scene.handle(host.pose), point)) return (now) => this.#aim(now, gesture);
    const frame = host.flight ? undefined : this.cameraUnder(point);
    if (frame === undefined) return (_, delta) => this.pan(delta);
    host.scrub(frame);
    return (now) => this.#move(this.view.under(now, host.pose.position), gesture);
  }

  #move(wanted, gesture) {
    const { host: { pose, snap } } = this, step = this.#step / 2;
    const position = snap ? wanted.map((value) => Math.round(value / step) * step) : wanted;
    this.host.setPose({ ...pose, position }, gesture);
  }

  /** Moves the camera at the playhead half a grid square right and down (or left and up) this view. */
  nudge(arrow) {
    const pixels = arrow.map((squares) => (squares * this.#step) / 2 / this.range);
    this.#move(add(this.host.pose.position, this.view.shift(pixels, this.range)), null);
  }

  /** Turns the camera towards the pointer within this plane: yaw from above, pitch from the side. */
  #aim(now, gesture) {
    const { pose: { position, quaternion }, snap } = this.host, angles = toAngles(quaternion), round = snap ? 5 : 0.1;
    const [x, y, z] = subtract(this.view.under(now, position), position), above = this.axes[0] === 0;
    const angle = (above ? Math.atan2(x, z) : Math.atan2(-y, Math.abs(z))) / RAD;
    angles[above ? 0 : 1] = Math.round(angle / round) * round;
    this.host.setPose({ position, quaternion: fromAngles(...angles) }, gesture);
  }

  draw(scene, theme) {
    const { host, width, height } = this, painter = new Painter(this.clear(), this.view, theme), step = this.#step;
    painter.grid(this.axes, this.center, step, Math.ceil((Math.max(width, height) / 2) * (this.range / step)) + 1);
    painter.shape(scene.card, theme.accentFill, theme.muted);
    painter.path(scene, host.flight?.poses);
    painter.cameras(scene);
    painter.current(scene.camera(host.pose), host.flight ? null : scene.handle(host.pose));
  }
}

/** Drag to scrub, drag a diamond to move its keyframe in time. */
export class Timeline extends Pane {
  get #spacing() { return (this.width - 2 * PADDING) / (this.host.state.frames - 1); }
  #x(frame) { return PADDING + frame * this.#spacing; }
  #frame(x) { return clamp(Math.round((x - PADDING) / this.#spacing), 0, this.host.state.frames - 1); }

  start([x, y]) {
    const { host } = this, gesture = {}, low = y > this.height - 2 * KEY_ROW;
    const key = low && host.state.keyframes.find(({ frame }) => Math.abs(this.#x(frame) - x) < 7);
    host.scrub(key ? key.frame : this.#frame(x));
    return ([now]) => {
      const to = this.#frame(now);
      if (key && keyframeAt(host.state, to)) return;
      if (key) host.edit(retimeKeyframe(host.state, host.frame, to), gesture);
      host.scrub(to);
    };
  }

  draw({ state }, theme) {
    const context = this.clear(), { height, host } = this, playhead = this.#x(host.frame), now = Math.round(host.frame);
    const ariaValueText = `frame ${now}, ${(now / state.fps).toFixed(1)} seconds`;
    Object.assign(this.canvas, { ariaValueMax: state.frames - 1, ariaValueNow: now, ariaValueText });
    this.#ticks(context, state, theme);
    for (const { frame } of state.keyframes) {
      context.fillStyle = frame === host.frame ? theme.accent : theme.key;
      context.fill(new Path2D(`M${this.#x(frame)} ${height - KEY_ROW - 5}l5 5-5 5-5-5Z`));
    }
    context.fillStyle = theme.accent;
    context.fillRect(playhead - 0.75, 4, 1.5, height - 4);
    context.fill(new Path2D(`M${playhead - 4} 5a4 4 0 0 0 8 0 4 4 0 0 0-8 0`));
  }

  /** Labelled seconds, and a mark for every fourth frame (the latent frames the model sees) while they fit. */
  #ticks(context, { frames, fps }, theme) {
    const spacing = this.#spacing, step = Math.max(1, niceStep(34 / (spacing * fps)));
    context.fillStyle = theme.axis;
    if (spacing > 0.8) for (let i = 0; i < frames; i += 4) context.fillRect(Math.round(this.#x(i)), this.height - 4, 1, 4);
    for (let second = 0; second * fps < frames; second += step) {
      const x = Math.round(this.#x(second * fps));
      context.fillStyle = theme.axis;
      context.fillRect(x, this.height - 28, 1, 28);
      context.fillStyle = theme.muted;
      if (x + 24 < this.width) context.fillText(`${second}s`, x + 4, this.height - 21);
    }
  }
}
