// The camera editor: one document, three views, a time line. Knows nothing of ComfyUI.

import { clamp, fromAngles, poseAt, toAngles } from "./math.js";
import { commandFor, commandsOf } from "./commands.js";
import * as paths from "./state.js";
import { Flight } from "./fly.js";
import { PlanPane, Timeline, WorldPane } from "./panes.js";
import { buildScene, measure, SIDE, TOP } from "./views.js";

const VIDEO_ASPECT = 832 / 480;
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const FLY_HELP = "WASD move, IJKL or drag look, Enter sets a keyframe, Esc ends";
const THEME = ["background", "text", "muted", "grid", "axis", "key", "accent", "accentFill"];

export class Editor {
  /** Builds itself from the text of editor.html and a document; `onCommit` is called after every finished edit. */
  constructor(html, text, onCommit = () => {}) {
    this.element = new DOMParser().parseFromString(html, "text/html").body.firstElementChild;
    this.find = (selector) => this.element.querySelector(selector);
    this.picture = this.find("img");
    this.inputs = [...this.element.querySelectorAll("[data-pose], [data-setting]")];
    this.find("select").append(...Object.keys(paths.EASINGS).map((name) => new Option(name.replaceAll("_", " "), name)));
    Object.assign(this, { onCommit, snap: false, camera: false, stale: new Set(), commands: commandsOf(this) });
    this.history = new paths.History(paths.parse(text));
    this.#rest();
    const pane = (Kind, name, ...rest) => new Kind(this, this.find(`[data-view=${name}]`), ...rest);
    this.plans = [pane(PlanPane, "top", TOP, [0, 2]), pane(PlanPane, "side", SIDE, [2, 1])];
    this.panes = [pane(WorldPane, "world"), ...this.plans, pane(Timeline, "time")];
    this.#listen();
    this.fit();
  }

  get state() { return this.history.state; }
  /** The document as JSON; one that could not be read is kept as it came. */
  get text() { return this.unreadable ?? paths.serialize(this.state); }
  /** Whether the 3D view looks through the camera. */
  get inside() { return this.camera || this.flight !== null; }
  get pose() { return this.flight?.shown ?? poseAt(paths.track(this.state), this.frame); }
  get scene() { return (this.built ??= buildScene(this.state, this.sizes, this.aspect)); }
  get aspect() { return this.picture.naturalWidth / this.picture.naturalHeight || VIDEO_ASPECT; }

  /** Takes what the workflow holds; a text that is no path is kept for it. */
  load(text) {
    if (text === this.text) return;
    this.unreadable = this.#attempt(() => this.history.reset(paths.parse(text))) ? null : text;
    this.#rest();
    this.fit();
  }

  paste(text) {
    if (!this.#attempt(() => this.edit(paths.parse(text)))) return;
    this.togglePanel(false);
    this.fit();
  }

  /** Says what is wrong with a path instead of throwing it; returns whether nothing is. */
  #attempt(action) {
    try {
      action();
      return true;
    } catch (error) {
      return this.say(`This path cannot be read: ${error.message}. Mend it under {}, or edit on.`);
    }
  }

  dispose() {
    this.resizes.disconnect();
    this.redraw = () => {};
  }

  /** Takes a new state. Those that share a `gesture` (one drag) are one step of undo, committed when it ends. */
  edit(state, gesture = null) {
    this.unreadable = null;
    this.history.push(state, gesture);
    if (!this.flight) this.say("");
    this.#changed();
    if (!gesture) this.onCommit();
  }

  setPose(pose, gesture) { this.edit(paths.setKeyframe(this.state, Math.round(this.frame), pose), gesture); }

  travel(step) {
    if (!this.history.travel(step)) return this.say(`Nothing to ${step < 0 ? "undo" : "redo"}`);
    this.#changed();
    return this.onCommit();
  }

  scrub(frame) {
    if (this.flight) this.land();
    this.#rest(clamp(Math.round(frame), 0, this.state.frames - 1));
    this.redraw();
  }

  play() {
    const atEnd = this.frame >= this.state.frames - 1 || this.state.ease !== "linear";
    this.scrub(atEnd ? 0 : this.frame);
    this.playing = this.frame;
  }

  #rest(frame = 0) { Object.assign(this, { frame, flight: null, playing: null }); }

  takeOff(record) {
    const { pose, state: { frames, fps } } = this, start = Math.round(this.frame) % (frames - 1);
    this.#rest(start);
    Object.assign(this, { recordStart: start, flight: new Flight(pose, fps, record ? frames - start : 0) });
    this.say(record ? `Records from frame ${start} once you move. ${FLY_HELP}` : `${FLY_HELP}, R records`);
  }

  lookBy(yaw, pitch) {
    this.flight ??= new Flight(this.pose, this.state.fps);
    this.flight.lookBy(yaw, pitch);
    this.redraw();
  }

  /** Ends the flight; a recorded run becomes keyframes. */
  land() {
    const { flight: { recording, poses }, recordStart: start } = this, end = start + poses.length - 1;
    this.#rest(this.frame);
    this.say("");
    this.redraw();
    if (!recording || end === start) return;
    this.edit(paths.replaceWithRecording(this.state, start, poses));
    this.fit();
    this.say(`Recorded frames ${start} to ${end}${end < this.state.frames - 1 ? "; the camera then stands still" : ""}`);
  }

  fit() {
    this.sizes = measure(this.state);
    for (const pane of this.panes) pane.fit(this.sizes);
    this.#changed();
  }

  say(message) { this.find(".lbw-status").textContent = message; }

  /** Shows the picture at a URL on the first frame's card; null shows a placeholder. */
  setImage(url) {
    if (url === this.picture.getAttribute("src")) return;
    if (url) this.picture.src = url;
    else this.picture.removeAttribute("src");
    this.#changed();
  }

  togglePanel(open) {
    this.find(".lbw-json").hidden = !open;
    this.find("textarea").value = this.text.replaceAll('{"frame"', '\n{"frame"');
    if (open) this.find("textarea").focus();
  }

  #listen() {
    const { element } = this, letGo = ({ target }) => this.#hold(target.dataset.hold, false);
    const listeners = {
      click: (event) => this.#clicked(event),
      change: ({ target }) => this.#typed(target),
      keydown: (event) => this.#pressed(event),
      keyup: ({ key }) => this.#hold(key.toLowerCase(), false),
      focusout: ({ relatedTarget }) => element.contains(relatedTarget) || this.flight?.held.clear(),
      copy: (event) => this.#clipboard(event),
      paste: (event) => this.#clipboard(event),
      pointerdown: ({ target }) => this.#hold(target.dataset.hold, true),
      pointerup: letGo, pointercancel: letGo, pointerout: letGo,
    };
    for (const [type, listener] of Object.entries(listeners)) element.addEventListener(type, listener);
    this.picture.onload = () => this.#changed();
    this.resizes = new ResizeObserver(() => this.#resized());
    for (const { canvas } of this.panes) this.resizes.observe(canvas);
  }

  #clicked(event) {
    const button = event.target.closest("button");
    if (!button) return;
    this.commands[button.dataset.command]?.(event);
    if (event.detail > 0 && this.find(".lbw-json").hidden) this.element.focus({ preventScroll: true });
    this.redraw();
  }

  #pressed(event) {
    const { key, target } = event, control = event.ctrlKey || event.metaKey, command = commandFor(event);
    if (control ? !command : event.altKey) return;
    event.stopPropagation();
    if (target.matches(control ? "textarea" : "textarea, select, input") && key !== "Escape") return;
    if (target.matches("button") && (key === "Enter" || key === " ")) return;
    const plan = this.plans.find(({ canvas }) => canvas === target), arrow = control ? null : ARROWS[key];
    if (plan && arrow) plan.nudge(arrow);
    else if (command) this.commands[command](event);
    else if (control || !this.flight || !this.#hold(key.toLowerCase(), true)) return;
    event.preventDefault();
    this.redraw();
  }

  /** Holds or lets go one of the keys W A S D I J K L; returns whether it is one. */
  #hold(key, down) {
    const pad = this.find(`[data-hold="${CSS.escape(key)}"]`);
    if (!pad) return false;
    pad.classList.toggle("lbw-held", down);
    this.flight?.held[down ? "add" : "delete"](key);
    this.redraw();
    return true;
  }

  #clipboard(event) {
    if (event.target.matches("textarea, input")) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.type === "paste") return void this.paste(event.clipboardData.getData("text/plain"));
    event.clipboardData.setData("text/plain", this.text);
    this.say("Copied");
  }

  #typed({ dataset: { pose, setting }, value, type }) {
    const typed = type === "number" ? Number.parseFloat(value) : value, { position, quaternion } = this.pose;
    const values = [...position, ...toAngles(quaternion)].with(pose ?? 0, typed);
    const next = { position: values.slice(0, 3), quaternion: fromAngles(...values.slice(3)) };
    if (setting === "frames" && typed) this.edit(paths.setFrames(this.state, typed));
    else if (setting) this.#attempt(() => this.edit(paths.validate({ ...this.state, [setting]: typed })));
    else if (pose && Number.isFinite(typed)) this.setPose(next);
    this.redraw();
  }

  #resized() {
    for (const pane of this.panes) pane.resize(this.sizes);
    this.redraw();
  }

  #changed() {
    this.built = null;
    this.frame = Math.min(this.frame, this.state.frames - 1);
    this.element.style.setProperty("--lbw-aspect", this.aspect);
    this.redraw();
  }

  /** Has a pane, or everything, drawn in the next animation frame. */
  redraw(pane) {
    for (const stale of pane ? [pane] : [...this.panes, this]) this.stale.add(stale);
    this.request ??= requestAnimationFrame((now) => this.#frame(now));
  }

  #frame(now) {
    const { element, stale } = this, moving = this.#advance(this.drawn ? (now - this.drawn) / 1000 : 0);
    this.drawn = moving ? now : 0;
    this.request = null;
    if (!element.clientWidth) return;
    const style = getComputedStyle(element), zoom = element.getBoundingClientRect().width / element.clientWidth;
    const theme = Object.fromEntries(THEME.map((name) => [name, style.getPropertyValue(`--lbw-${name}`)]));
    this.sharpness = clamp(window.devicePixelRatio * zoom, 1, 2);
    for (const pane of stale) pane.draw(this.scene, theme);
    stale.clear();
    if (moving) this.redraw();
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

  /** Brings fields and buttons up to date. */
  draw() {
    const { state, pose, flight } = this, round = (value, decimals) => Number(value.toFixed(decimals)) + 0;
    const numbers = [...pose.position, ...toAngles(pose.quaternion)].map((value, i) => round(value, i < 3 ? 3 : 1));
    for (const input of this.inputs) {
      const { pose: index, setting } = input.dataset, value = String(setting ? state[setting] : numbers[index]);
      if (input !== document.activeElement && input.value !== value) input.value = value;
    }
    this.find("output").textContent = `${Math.round(this.frame)} / ${state.frames - 1}`;
    const on = { play: this.playing !== null, snap: this.snap, loop: state.loop, camera: this.inside,
      fly: flight !== null, record: flight?.recording ?? false };
    for (const name of Object.keys(on)) this.find(`[data-command=${name}]`).ariaPressed = on[name];
    this.element.classList.toggle("lbw-flying", on.fly);
    this.element.classList.toggle("lbw-inside", on.camera);
  }
}
