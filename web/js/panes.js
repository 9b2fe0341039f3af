// The three views and the time line: what each draws, and what pointers and the wheel do in it.

import { add, clamp, distance, fromAngles, mixVectors, RAD, rotate, scale, subtract, toAngles } from "./math.js";
import { keyframeAt, retimeKeyframe } from "./state.js";
import { niceStep, View } from "./views.js";

const CARD_WIDTH = 416, REACH = 11; // pixels of .lbw-card before it lies in the world, and around what is hit
const PADDING = 10, KEY_ROW = 11; // pixels of the time line from its sides, and of its diamonds from the bottom

// A canvas that shows the world around `center`. One pointer drags: start(point, event) returns what to call with each
// (point, delta), in CSS pixels [x, y, 0]. Two fingers pan and zoom; the wheel zooms once the editor has the focus.
class Pane {
  #pointers = new Map();
  constructor(host, canvas, plane) {
    Object.assign(this, { host, canvas, plane });
    const on = (type, act) => canvas.addEventListener(type, (event) => act(event, [event.offsetX, event.offsetY, 0]));
    on("pointerdown", (event, at) => this.#press(event, at));
    on("pointermove", (event, at) => this.#move(event.pointerId, at));
    for (const type of ["pointerup", "pointercancel"]) on(type, ({ pointerId }) => this.#release(pointerId));
    on("wheel", (event, at) => this.#wheel(event, at));
    on("contextmenu", (event) => event.preventDefault());
  }

  #press(event, at) {
    this.canvas.setPointerCapture(event.pointerId);
    this.#pointers.set(event.pointerId, at);
    this.drag = this.#pointers.size === 1 ? this.start(at, event) : () => {};
  }

  #move(id, at) {
    const before = this.#pointers.get(id);
    if (!before) return;
    const other = [...this.#pointers.values()].find((point) => point !== before), delta = subtract(at, before);
    this.#pointers.set(id, at);
    if (other) {
      this.pan(scale(delta, 0.5));
      this.zoom(Math.max(1, distance(at, other)) / Math.max(1, distance(before, other)), mixVectors(at, other, 0.5));
    } else this.drag(at, delta);
    this.host.redraw(this);
  }

  #release(id) {
    if (this.#pointers.delete(id) && !this.#pointers.size) this.host.commit();
  }

  #wheel(event, at) {
    if (!this.host.element.contains(document.activeElement)) return;
    event.preventDefault();
    event.stopPropagation();
    this.zoom(Math.exp(-event.deltaY * 0.0015), at);
    this.host.redraw(this);
  }

  /** Shows all of a path of these measures, and notes the size, so that drawing asks nothing of the layout. */
  fit() { Object.assign(this, { width: this.canvas.clientWidth, height: this.canvas.clientHeight }); }
  /** The context, cleared, in CSS pixels and as sharp as the zoomed page shows it. */
  clear() {
    const { canvas, host: { sharpness } } = this, context = canvas.getContext("2d");
    const width = Math.round(this.width * sharpness), height = Math.round(this.height * sharpness);
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    context.setTransform(sharpness, 0, 0, sharpness, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    return Object.assign(context, { font: "10px system-ui, sans-serif" });
  }

  pan(delta) { this.center = this.view.beside(this.center, scale(delta, -1)); }
  zoom(factor, point) {
    this.center = mixVectors(this.center, this.view.under(point, this.center), 1 - 1 / factor);
    this.range /= factor;
  }

  near(world, point) {
    const at = this.view.point(world);
    return at !== null && distance(at, point) < REACH;
  }

  /** The frame of the camera symbol under a point: the one at the playhead first, then the keyframes. */
  cameraUnder(point) {
    if (this.near(this.host.pose.position, point)) return this.host.frame;
    return this.host.state.keyframes.find((key) => this.near(key.position, point))?.frame;
  }
}

/** The world from outside, from a `range` away (drag to orbit), or through the camera (drag to look around). */
export class WorldPane extends Pane {
  fit(sizes) {
    super.fit();
    if (sizes === this.sizes) return; // only the canvas has changed
    const ahead = rotate(this.host.state.keyframes[0].quaternion, [0, 0, sizes.extent * 0.3]);
    Object.assign(this, { sizes, center: add(sizes.center, ahead), range: sizes.extent * 3, yaw: -38, pitch: -24 });
  }

  get view() {
    const { width, height, host } = this, quaternion = fromAngles(this.yaw, this.pitch);
    const position = subtract(this.center, rotate(quaternion, [0, 0, this.range]));
    if (!host.inside) return new View({ position, quaternion }, 1.1 * Math.min(width, height * 1.4), width, height);
    const frameWidth = Math.min(width * 0.94, height * 0.9 * host.aspect); // as .lbw-frame
    return new View(host.pose, frameWidth / 2 / Math.tan((host.state.fov_deg * RAD) / 2), width, height);
  }

  pan(delta) { if (!this.host.inside) super.pan(delta); }
  zoom(factor, point) { if (!this.host.inside) super.zoom(factor, point); }

  start(point, event) {
    const { host } = this, degrees = (pixels) => pixels / this.view.focal / RAD;
    if (host.inside) return (_, [dx, dy]) => (host.flight ?? host.takeOff(false)).lookBy(degrees(dx), degrees(-dy));
    const frame = this.cameraUnder(point);
    if (frame !== undefined) host.scrub(frame);
    if (event.shiftKey || event.button > 0) return (_, delta) => this.pan(delta);
    return (_, [dx, dy]) => {
      this.yaw += dx * 0.4;
      this.pitch = clamp(this.pitch - dy * 0.4, -89, 89);
    };
  }

  draw(scene, theme) {
    const { host: { aspect, inside, flight, pose } } = this, { center, ground, extent } = scene.sizes;
    const view = this.view.on(this.clear(), theme), foot = ([x, , z]) => [x, ground, z];
    this.host.find(".lbw-card").style.transform = view.cssMatrix(scene.card, CARD_WIDTH, CARD_WIDTH / aspect);
    view.grid([0, 2], foot(center), niceStep(extent / 5), 10);
    if (!inside) view.strokes(scene.cameras.map(({ apex }) => [apex, foot(apex)]), theme.axis);
    view.path(scene, flight?.poses);
    view.cameras(scene);
    if (!inside) view.current(scene.camera(pose));
  }
}

/** A plan, `range` world units a pixel: drag cameras and their look handles, drag the ground to pan. */
export class PlanPane extends Pane {
  fit({ center, low, high, extent }) {
    super.fit();
    const [across, along] = this.plane.axes.map((axis) => high[axis] - low[axis] + extent * 0.45);
    Object.assign(this, { center, range: Math.max(across / this.width, along / this.height) });
  }

  get view() {
    return new View({ ...this.plane, position: this.center }, 1 / this.range, this.width, this.height, true);
  }

  get #step() { return niceStep(28 * this.range); }

  start(point) {
    const { host } = this, gesture = {};
    if (!host.flight && this.near(host.scene.handle(host.pose), point)) return (now) => this.#aim(now, gesture);
    const frame = host.flight ? undefined : this.cameraUnder(point);
    if (frame === undefined) return (_, delta) => this.pan(delta);
    host.scrub(frame);
    return (now) => this.#place(this.view.under(now, host.pose.position), gesture);
  }

  #place(wanted, gesture) {
    const { host: { pose, snap } } = this, step = this.#step / 2;
    const position = snap ? wanted.map((value) => Math.round(value / step) * step) : wanted;
    this.host.setPose({ ...pose, position }, gesture);
  }

  /** Moves the camera at the playhead half a grid square right and down (or left and up) this view. */
  nudge(arrow) { this.#place(this.view.beside(this.host.pose.position, scale(arrow, this.#step / 2 / this.range))); }

  /** Turns the camera towards the pointer within this plane: yaw from above, pitch from the side. */
  #aim(now, gesture) {
    const { pose: { position, quaternion }, snap } = this.host, angles = toAngles(quaternion), round = snap ? 5 : 0.1;
    const [x, y, z] = subtract(this.view.under(now, position), position), turned = this.plane.axes[0] === 0 ? 0 : 1;
    const angle = (turned === 0 ? Math.atan2(x, z) : Math.atan2(-y, Math.abs(z))) / RAD;
    angles[turned] = Math.round(angle / round) * round;
    this.host.setPose({ position, quaternion: fromAngles(...angles) }, gesture);
  }

  draw(scene, theme) {
    const { host, width, height } = this, view = this.view.on(this.clear(), theme), step = this.#step;
    view.grid(this.plane.axes, this.center, step, Math.ceil((Math.max(width, height) / 2) * (this.range / step)) + 1);
    view.shape(scene.card, theme.accentFill, theme.muted);
    view.path(scene, host.flight?.poses);
    view.cameras(scene);
    view.current(scene.camera(host.pose), host.flight ? null : scene.handle(host.pose));
  }
}

/** Drag to scrub, drag a diamond to move its keyframe in time. */
export class Timeline extends Pane {
  pan() {}
  zoom() {}
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
    const diamond = ({ frame }) => `M${this.#x(frame)} ${height - KEY_ROW - 5}l5 5-5 5-5-5Z`;
    context.fillStyle = theme.key;
    context.fill(new Path2D(state.keyframes.map(diamond).join("")));
    context.fillStyle = theme.accent;
    if (keyframeAt(state, host.frame)) context.fill(new Path2D(diamond(host)));
    context.fillRect(playhead - 0.75, 4, 1.5, height - 4);
    context.fill(new Path2D(`M${playhead - 4} 5a4 4 0 0 0 8 0 4 4 0 0 0-8 0`));
  }

  /** Labelled seconds, and a mark for every fourth frame (the latent frames the model sees) while they fit. */
  #ticks(context, { frames, fps }, theme) {
    const mark = (frame, height) => context.fillRect(Math.round(this.#x(frame)), this.height - height, 1, height);
    const step = Math.max(1, niceStep(34 / (this.#spacing * fps)));
    for (let second = 0; second * fps < frames; second += step) {
      const x = this.#x(second * fps);
      context.fillStyle = theme.muted;
      if (x + 24 < this.width) context.fillText(`${second}s`, x + 4, this.height - 21);
      context.fillStyle = theme.axis;
      mark(second * fps, 28);
    }
    if (this.#spacing > 0.8) for (let frame = 0; frame < frames; frame += 4) mark(frame, 4);
  }
}
