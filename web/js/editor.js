// The camera editor: one document, three views, a time line. Knows nothing of ComfyUI.

import { clamp, fromAngles, poseAt, toAngles } from "./math.js";
import { commandFor, COMMANDS } from "./commands.js";
import * as paths from "./state.js";
import { Flight } from "./fly.js";
import { PlanPane, Timeline, WorldPane } from "./panes.js";
import { buildScene, measure, SIDE, TOP } from "./views.js";

const ARROWS = { ArrowLeft: [-1, 0, 0], ArrowRight: [1, 0, 0], ArrowUp: [0, -1, 0], ArrowDown: [0, 1, 0] };
const FLY_HELP = "WASD move, IJKL or drag look, Enter sets a keyframe, Esc ends";
const THEME = ["background", "text", "muted", "grid", "axis", "key", "accent", "accentFill"];

export class Editor {
  /** Builds itself from the text of editor.html and a document; `onCommit` is called after every finished edit. */
  constructor(html, text, onCommit = () => {}) {
    this.element = new DOMParser().parseFromString(html, "text/html").body.firstElementChild;
    this.find = (selector) => this.element.querySelector(selector);
    this.picture = this.find("img");
    this.inputs = [...this.element.querySelectorAll("[data-pose], [data-setting]")];
    this.find("select").append(...Object.keys(paths.EASINGS).map((id) => new Option(id.replaceAll("_", " "), id)));
    Object.assign(this, { onCommit, snap: false, camera: false, stale: new Set() });
    this.history = new paths.History(this.saved = paths.parse(text));
    this.#rest();
    const pane = (Kind, name, plane) => new Kind(this, this.find(`[data-view=${name}]`), plane);
    this.plans = [pane(PlanPane, "top", TOP), pane(PlanPane, "side", SIDE)];
    this.panes = [pane(WorldPane, "world"), ...this.plans, pane(Timeline, "time")];
    this.#listen();
    this.fit();
  }

  get state() { return this.history.state; }
  /** The document as JSON, without a drag that is under way; one that could not be read is kept as it came. */
  get text() { return this.unreadable ?? paths.serialize(this.saved); }
  /** Whether the 3D view looks through the camera. */
  get inside() { return this.camera || this.flight !== null; }
  get pose() { return this.flight?.shown ?? poseAt(paths.track(this.state), this.frame); }
  get scene() { return (this.built ??= buildScene(this.state, this.sizes, this.aspect)); }
  get aspect() { return this.picture.naturalWidth / this.picture.naturalHeight || 832 / 480; }
  say(message) { this.find(".lbw-status").textContent = message; }
  paste(text) { if (this.#read(text, (state) => this.edit(state))) this.togglePanel(false); }
  commit() { this.onCommit(this.saved = this.state); }
  setPose(pose, gesture) { this.edit(paths.setKeyframe(this.state, Math.round(this.frame), pose), gesture); }
  /** Shows a picture on the first frame's card; with an empty URL a placeholder. */
  setPicture(url) { if (this.picture.getAttribute("src") !== url) this.picture.src = url; }
  #rest(frame = 0) { Object.assign(this, { frame, flight: null, playing: null }); }

  /** Takes what the workflow holds; a text that is no path is kept for it. */
  load(text) {
    if (text === this.text) return;
    this.#rest();
    this.unreadable = this.#read(text, (state) => this.history.reset(state)) ? null : text;
  }

  /** Has the path in a text used, or says what is wrong with it; returns whether nothing is. */
  #read(text, use) {
    try {
      use(paths.parse(text));
      this.saved = this.state;
      this.fit();
      return true;
    } catch (error) {
      return this.say(`This path cannot be read: ${error.message}. Mend it under {}, or edit on.`);
    }
  }

  /** Takes a new state. Those that share a `gesture` (one drag) are one step of undo, committed when it ends. */
  edit(state, gesture = null) {
    this.unreadable = null;
    this.history.push(state, gesture);
    if (!this.flight) this.say("");
    this.#changed();
    if (!gesture) this.commit();
  }

  travel(step) {
    if (!this.history.travel(step)) return this.say(`Nothing to ${step < 0 ? "undo" : "redo"}`);
    this.#changed();
    return this.commit();
  }

  scrub(frame) {
    if (this.flight) this.land();
    this.#rest(clamp(Math.round(frame), 0, this.state.frames - 1));
    this.redraw();
  }

  play() {
    this.scrub(this.state.ease === "linear" && this.frame < this.state.frames - 1 ? this.frame : 0);
    this.playing = this.frame;
  }

  takeOff(record) {
    const { pose, state: { frames, fps } } = this, start = Math.round(this.frame) % (frames - 1);
    this.#rest(start);
    this.say(record ? `Records from frame ${start} once you move. ${FLY_HELP}` : `${FLY_HELP}, R records`);
    this.recordStart = start;
    return (this.flight = new Flight(pose, fps, record ? frames - start : 0));
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
    this.say(`Recorded frames ${start} to ${end}${end < this.state.frames - 1 ? ", then stands still" : ""}`);
  }

  fit(sizes = measure(this.state)) {
    this.sizes = sizes;
    for (const pane of this.panes) pane.fit(sizes);
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
      copy: (event) => this.#clipboard(event, (data) => data.setData("text/plain", this.text)),
      paste: (event) => this.#clipboard(event, (data) => this.paste(data.getData("text/plain"))),
      pointerdown: ({ target }) => this.#hold(target.dataset.hold, true),
      pointerup: letGo, pointercancel: letGo, pointerout: letGo,
    };
    for (const [type, listener] of Object.entries(listeners)) element.addEventListener(type, listener);
    this.picture.onload = this.picture.onerror = () => this.#changed();
    const resizes = new ResizeObserver(() => this.fit(this.sizes));
    for (const { canvas } of this.panes) resizes.observe(canvas);
  }

  #clicked(event) {
    const button = event.target.closest("button");
    COMMANDS[button?.dataset.command]?.[0](this, event);
    if (button && event.detail > 0 && this.find(".lbw-json").hidden) this.element.focus({ preventScroll: true });
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
    else if (command) COMMANDS[command][0](this, event);
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

  #clipboard(event, act) {
    if (event.target.matches("textarea, input")) return;
    event.preventDefault();
    event.stopPropagation();
    this.say(event.type === "copy" ? "Copied" : "");
    act(event.clipboardData);
  }

  #typed({ dataset: { pose, setting }, value, type }) {
    const typed = type === "number" ? Number.parseFloat(value) : value, { position, quaternion } = this.pose;
    const values = [...position, ...toAngles(quaternion)].with(pose ?? 0, typed);
    const next = { position: values.slice(0, 3), quaternion: fromAngles(...values.slice(3)) };
    if (setting === "frames" && typed) this.edit(paths.setFrames(this.state, typed));
    else if (setting) this.#read(JSON.stringify({ ...this.state, [setting]: typed }), (state) => this.edit(state));
    else if (pose && Number.isFinite(typed)) this.setPose(next);
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
  }
}
