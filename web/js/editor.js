// The camera editor: one document, three views, a time line. Knows nothing of ComfyUI.

import { clamp, fromAngles, poseAt, toAngles } from "./math.js";
import { commandFor, commandsOf } from "./commands.js";
import * as paths from "./state.js";
import { Flight } from "./fly.js";
import { PlanPane, WorldPane } from "./panes.js";
import { Timeline } from "./timeline.js";
import { buildScene, measure, SIDE, TOP } from "./views.js";

const FLY_KEYS = "wasdijkl", VIDEO_ASPECT = 832 / 480;
const FLY_HELP = "WASD move, IJKL or drag look, Enter sets a keyframe, Esc ends";
const THEME = ["background", "text", "muted", "grid", "axis", "key", "accent", "accentFill"];

export class Editor {
  /** Builds itself from the text of editor.html; `onCommit` is called after every finished edit. */
  constructor(html, onCommit = () => {}) {
    Object.assign(this, { onCommit, aspect: VIDEO_ASPECT, frame: 0, snap: false, camera: false });
    Object.assign(this, { flight: null, playing: null });
    this.history = new paths.History(paths.DEFAULT_STATE);
    this.commands = commandsOf(this);
    this.element = new DOMParser().parseFromString(html, "text/html").body.firstElementChild;
    this.find = (selector) => this.element.querySelector(selector);
    const canvas = (view) => this.find(`[data-view=${view}]`);
    this.world = new WorldPane(this, canvas("world"), this.find(".lbw-card"), this.find(".lbw-frame"));
    this.plans = [new PlanPane(this, canvas("top"), TOP), new PlanPane(this, canvas("side"), SIDE)];
    this.timeline = new Timeline(canvas("time"), this);
    this.#listen();
    this.resizes = new ResizeObserver(() => this.#resized());
    this.resizes.observe(this.element);
    this.fit();
  }

  get state() { return this.history.state; }

  /** The document as JSON; one that could not be read is kept as it came. */
  get text() { return this.unreadable ?? paths.serialize(this.state); }

  /** Whether the 3D view looks through the camera. */
  get inside() { return this.camera || this.flight !== null; }

  get pose() { return this.flight?.shown ?? poseAt(paths.track(this.state), this.frame); }

  get scene() { return (this.built ??= buildScene(this.state, this.sizes, this.aspect)); }

  load(text) {
    if (text === this.text) return;
    try {
      this.history.reset(paths.parse(text));
      this.unreadable = null;
    } catch (error) {
      this.unreadable = text;
      this.say(`This path cannot be read: ${error.message}. Mend it under {}, or edit to start over.`);
    }
    Object.assign(this, { frame: 0, flight: null, playing: null });
    this.fit();
  }

  dispose() {
    this.resizes.disconnect();
    cancelAnimationFrame(this.request);
    this.redraw = () => {};
  }

  edit(state, gesture = null) {
    this.unreadable = null;
    this.history.push(state, gesture);
    this.#changed();
    if (!gesture) this.onCommit();
  }

  endDrag() { this.onCommit(); }

  setPose(pose, gesture) { this.edit(paths.setKeyframe(this.state, Math.round(this.frame), pose), gesture); }

  retime(from, to, gesture) {
    const moved = paths.retimeKeyframe(this.state, from, to);
    if (moved === this.state) return from;
    this.edit(moved, gesture);
    this.scrub(to);
    return to;
  }

  scrub(frame) {
    if (this.flight) this.land();
    Object.assign(this, { playing: null, frame: clamp(Math.round(frame), 0, this.state.frames - 1) });
    this.redraw();
  }

  lookBy(yaw, pitch) {
    this.flight ??= new Flight(this.pose, this.state.fps);
    this.flight.lookBy(yaw, pitch);
    this.redraw();
  }

  /** Ends the flight; a recorded run becomes keyframes. */
  land() {
    const { recording, poses } = this.flight;
    this.flight = null;
    this.say("");
    if (recording && poses.length > 1) {
      this.edit(paths.replaceWithRecording(this.state, this.recordStart, poses));
      this.fit();
      this.say(`Recorded ${poses.length} frames`);
    }
    this.redraw();
  }

  fit() {
    this.sizes = measure(this.state);
    [this.world, ...this.plans].forEach((pane) => pane.fit(this.sizes));
    this.#changed();
  }

  say(message) { this.find(".lbw-status").textContent = message; }

  /** Shows the picture at a URL on the first frame's card; with none, a placeholder. */
  setImage(url) {
    const picture = this.find("img");
    if (url === this.imageUrl) return;
    Object.assign(this, { imageUrl: url, aspect: VIDEO_ASPECT });
    picture.hidden = true;
    picture.onload = () => {
      picture.hidden = false;
      this.aspect = picture.naturalWidth / picture.naturalHeight;
      this.#changed();
    };
    if (url) picture.src = url;
    this.#changed();
  }

  redraw() { this.request ??= requestAnimationFrame((now) => this.#draw(now)); }

  #listen() {
    const { element } = this;
    element.addEventListener("click", (event) => this.#clicked(event));
    element.addEventListener("keydown", (event) => this.#pressed(event));
    element.addEventListener("keyup", (event) => this.#hold(event.key.toLowerCase(), false));
    element.addEventListener("focusout", (event) => element.contains(event.relatedTarget) || this.flight?.held.clear());
    const copy = (data) => data.setData("text/plain", this.text);
    const paste = (data) => this.paste(data.getData("text/plain"));
    element.addEventListener("copy", (event) => this.#clipboard(event, copy));
    element.addEventListener("paste", (event) => this.#clipboard(event, paste));
    for (const pad of element.querySelectorAll("[data-hold]")) {
      pad.onpointerdown = () => this.#hold(pad.dataset.hold, true);
      pad.onpointerup = pad.onpointercancel = pad.onpointerleave = () => this.#hold(pad.dataset.hold, false);
    }
    const option = (name) => new Option(name.replaceAll("_", " "), name);
    this.find("select").append(...Object.keys(paths.EASINGS).map(option));
    this.inputs = [...element.querySelectorAll("[data-pose], [data-setting]")];
    for (const input of this.inputs) input.onchange = () => this.#typed(input);
  }

  #clicked(event) {
    const button = event.target.closest("button");
    if (!button) return;
    this.commands[button.dataset.command]?.(event);
    if (event.detail > 0 && this.find(".lbw-json").hidden) this.element.focus({ preventScroll: true });
    this.redraw();
  }

  #pressed(event) {
    const { key, target } = event, control = event.ctrlKey || event.metaKey;
    if (control ? !commandFor(event) : event.altKey) return;
    event.stopPropagation();
    if (target.matches("textarea, select, input") && !control && key !== "Escape") return;
    if (target.matches("textarea") && control) return;
    if (target.matches("button") && (key === "Enter" || key === " ")) return;
    if (!this.#keyed(event, control)) return;
    event.preventDefault();
    this.redraw();
  }

  /** Does what a key means here; returns whether it means anything. */
  #keyed(event, control) {
    const { key, target } = event, letter = key.toLowerCase();
    if (this.flight && !control && FLY_KEYS.includes(letter)) return this.#hold(letter, true);
    const plan = this.plans.find(({ canvas }) => canvas === target);
    const arrow = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
    if (plan && arrow && !control) plan.nudge(...arrow);
    else this.commands[commandFor(event)]?.(event);
    return plan && arrow ? true : commandFor(event);
  }

  #hold(key, down) {
    if (down) this.flight?.held.add(key);
    else this.flight?.held.delete(key);
    this.find(`[data-hold="${CSS.escape(key)}"]`)?.classList.toggle("lbw-held", down);
    this.redraw();
    return true;
  }

  #clipboard(event, action) {
    if (event.target.matches("textarea, input")) return;
    event.preventDefault();
    event.stopPropagation();
    action(event.clipboardData);
  }

  paste(text) {
    try {
      this.edit(paths.parse(text));
    } catch (error) {
      return this.say(`Not a camera path: ${error.message}`);
    }
    this.togglePanel(false);
    return this.fit();
  }

  togglePanel(open) {
    this.find(".lbw-json").hidden = !open;
    this.find("textarea").value = this.text.replaceAll('{"frame"', '\n{"frame"');
    if (open) this.find("textarea").focus();
  }

  #typed({ dataset: { pose, setting }, value, type }) {
    const typed = type === "number" ? Number.parseFloat(value) : value, angles = toAngles(this.pose.quaternion);
    const values = [...this.pose.position, ...angles].map((old, i) => (i === Number(pose) ? typed : old));
    if (pose !== undefined && Number.isFinite(typed)) {
      this.setPose({ position: values.slice(0, 3), quaternion: fromAngles(...values.slice(3)) });
    } else if (setting === "frames" && typed) this.edit(paths.setFrames(this.state, typed));
    else if (setting) this.paste(JSON.stringify({ ...this.state, [setting]: typed }));
    this.redraw();
  }

  travel(direction) {
    if (!this.history[direction]()) return this.say(`Nothing to ${direction}`);
    this.#changed();
    return this.onCommit();
  }

  takeOff(record) {
    const { pose } = this;
    Object.assign(this, { playing: null, frame: Math.round(this.frame) % (this.state.frames - 1) });
    this.recordStart = this.frame;
    this.flight = new Flight(pose, this.state.fps, record ? this.state.frames - this.frame : 0);
    this.say(record ? `Records from frame ${this.frame} once you move. ${FLY_HELP}` : `${FLY_HELP}, R records`);
  }

  #changed() {
    this.built = null;
    this.frame = Math.min(this.frame, this.state.frames - 1);
    this.redraw();
  }

  #resized() {
    this.plans.forEach((pane) => pane.fit(this.sizes));
    this.redraw();
  }

  /** Moves the clock on; returns whether anything is under way. */
  #advance(seconds) {
    const { state, flight } = this;
    if (this.playing !== null) {
      this.playing = (this.playing + seconds * state.fps) % state.frames;
      this.frame = paths.easedTime(state, Math.min(this.playing, state.frames - 1));
    }
    const flying = flight?.advance(seconds);
    if (flight?.recording) this.frame = this.recordStart + flight.poses.length - 1;
    if (flight?.finished) this.land();
    return this.playing !== null || flying;
  }

  #draw(now) {
    this.request = null;
    const moving = this.#advance(this.drawn ? (now - this.drawn) / 1000 : 0);
    this.drawn = moving ? now : 0;
    if (moving) this.redraw();
    if (!this.element.clientWidth) return;
    const style = getComputedStyle(this.element);
    const theme = Object.fromEntries(THEME.map((name) => [name, style.getPropertyValue(`--lbw-${name}`)]));
    for (const pane of [this.world, ...this.plans]) pane.draw(this.scene, theme);
    this.timeline.draw(theme);
    this.#showValues();
  }

  #showValues() {
    const { state, pose, flight } = this, frame = Math.round(this.frame);
    const shorten = (decimals) => (value) => Number(value.toFixed(decimals)) + 0;
    const numbers = [...pose.position.map(shorten(3)), ...toAngles(pose.quaternion).map(shorten(1))];
    for (const input of this.inputs) {
      const { pose: index, setting } = input.dataset, value = String(setting ? state[setting] : numbers[index]);
      if (input !== document.activeElement && input.value !== value) input.value = value;
    }
    this.find("output").textContent = `${frame} / ${state.frames - 1}`;
    const on = { play: this.playing !== null, snap: this.snap, loop: state.loop, camera: this.inside,
      fly: flight !== null, record: flight?.recording ?? false };
    for (const name of Object.keys(on)) this.find(`[data-command=${name}]`).setAttribute("aria-pressed", on[name]);
    this.element.classList.toggle("lbw-flying", flight !== null);
    const seconds = (frame / state.fps).toFixed(1);
    const time = { max: state.frames - 1, now: frame, text: `frame ${frame}, ${seconds} seconds` };
    for (const [name, value] of Object.entries(time)) this.timeline.canvas.setAttribute(`aria-value${name}`, value);
  }
}
