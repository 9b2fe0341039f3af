// The camera editor: one document, three views, a time line. Knows nothing of ComfyUI.

import { SIDE, TOP } from "../drawing/view.js";
import { buildScene, measure } from "../drawing/scene.js";
import { readTheme, sharpnessOf } from "../drawing/theme.js";
import { Flight } from "../flight.js";
import { poseAt } from "../math/spline.js";
import { clamp } from "../math/vectors.js";
import { PlanPane } from "../panes/plan.js";
import { Timeline } from "../panes/timeline.js";
import { WorldPane } from "../panes/world.js";
import { parse, serialize } from "../path/document.js";
import { setKeyframe } from "../path/edits.js";
import { History } from "../path/history.js";
import { replaceWithRecording } from "../path/recording.js";
import { easedTime, track } from "../path/track.js";
import { Fields } from "./fields.js";
import { Hint } from "./hint.js";
import { Input } from "./input.js";
import { Panels } from "./panels.js";
import { Presets } from "./presets.js";
import { translate, words } from "../../live/words.mjs";

/**
 * @typedef {import("../path/document.js").PathState} PathState
 * @typedef {import("../math/spline.js").Pose} Pose
 * @typedef {import("../drawing/scene.js").Sizes} Sizes
 *
 * @typedef {object} Services  what the editor asks of the page it is in
 * @property {() => void} onCommit  called after every finished edit
 * @property {import("./presets.js").PresetStore} presetStore
 */

const OFFICIAL_ASPECT = 832 / 480;

export class Editor {
  /**
   * Builds itself from the text of editor.html and the document of a new node.
   * @param {string} html
   * @param {string} initial
   * @param {Services} services
   */
  constructor(html, initial, { onCommit, presetStore }) {
    this.element = translate(new DOMParser().parseFromString(html, "text/html").body.firstElementChild);
    this.picture = this.find("img");
    this.onCommit = onCommit;
    this.speed = 1; // of playback
    this.video = null; // the video's size, where it is known
    this.presets = new Presets(this, presetStore);
    this.hint = new Hint(this.find(".lbw-hint"));
    this.initial = initial;
    this.saved = parse(initial); // the newest document that was finished, not in the middle of a drag
    this.unreadable = null; // a text that the workflow holds and that is no document
    this.history = new History(this.saved);
    this.snap = false; // whether dragged cameras snap to the grid
    this.camera = false; // whether the 3D view was asked to look through the camera
    this.stale = new Set(); // what the next animation frame draws
    this.#rest();
    this.#build();
    this.fit();
  }

  #build() {
    const canvas = (name) => this.find(`[data-view=${name}]`);
    this.plans = [new PlanPane(this, canvas("top"), TOP), new PlanPane(this, canvas("side"), SIDE)];
    this.panes = [new WorldPane(this, canvas("world")), ...this.plans, new Timeline(this, canvas("time"))];
    this.fields = new Fields(this);
    this.input = new Input(this);
    this.panels = new Panels(this);
    for (const type of ["load", "error"]) this.picture.addEventListener(type, () => this.#changed());
    const resizes = new ResizeObserver(() => this.fit(this.sizes));
    for (const pane of this.panes) resizes.observe(pane.canvas);
  }

  /** The element with a CSS selector inside the editor. */
  find(selector) {
    return this.element.querySelector(selector);
  }

  get hasFocus() {
    return this.element.contains(document.activeElement);
  }

  /** Shows a line of text over the 3D view. */
  say(message) {
    this.find(".lbw-status").textContent = message;
  }

  // The document

  /** @returns {PathState} */
  get state() {
    return this.history.state;
  }

  /** The document as JSON, without a drag that is under way; one that could not be read is kept as it came. */
  get text() {
    return this.unreadable ?? serialize(this.saved);
  }

  /** Takes what the workflow holds; a text that is no document is kept for the workflow. */
  load(text) {
    if (text === this.text) return;
    this.#rest();
    this.unreadable = this.#use(() => this.history.reset(parse(text))) ? null : text;
  }

  /** Takes a document that someone pasted. */
  paste(text) {
    if (this.#use(() => this.edit(parse(text)))) this.panels.close();
  }

  /** Runs what may find a document wrong; shows the new document or what is wrong. Returns whether it was right. */
  #use(act) {
    try {
      act();
      this.saved = this.state;
      this.fit();
      return true;
    } catch (error) {
      this.say(words("This path cannot be read: {message}. Correct it under {}, or continue to edit.", error));
      return false;
    }
  }

  /**
   * Takes a new state. Those that share a `gesture` (one drag) are one step of undo, committed when the drag ends.
   * @param {PathState} state
   * @param {object | null} gesture
   */
  edit(state, gesture = null) {
    this.unreadable = null;
    this.hint.dismiss();
    this.history.push(state, gesture);
    if (!this.flight) this.say("");
    this.#changed();
    if (!gesture) this.commit();
  }

  /** Has the newest state saved. */
  commit() {
    this.saved = this.state;
    this.onCommit();
  }

  /** Undoes (-1) or does again (1) one edit. */
  travel(step) {
    if (!this.history.travel(step)) {
      this.say(step < 0 ? words("Nothing to undo") : words("Nothing to redo"));
      return;
    }
    this.#changed();
    this.commit();
  }

  /** Sets the keyframe at the playhead. @param {Pose} pose */
  setPose(pose, gesture = null) {
    this.edit(setKeyframe(this.state, Math.round(this.frame), pose), gesture);
  }

  // What is shown

  /** Whether the 3D view looks through the camera. */
  get inside() {
    return this.camera || this.flight !== null;
  }

  /** The pose at the playhead, or of the flight. @returns {Pose} */
  get pose() {
    return this.flight?.shown ?? poseAt(track(this.state), this.frame);
  }

  /** Width over height of the video; of the first frame where the video's size is not known. */
  get aspect() {
    return this.video?.aspect ?? this.pictureAspect;
  }

  get pictureAspect() {
    return this.picture.naturalWidth / this.picture.naturalHeight || OFFICIAL_ASPECT;
  }

  get scene() {
    this.builtScene ??= buildScene(this.state, this.sizes, this.aspect);
    return this.builtScene;
  }

  /** Shows a picture on the first frame's card; with an empty URL a placeholder. */
  setPicture(url) {
    if (this.picture.getAttribute("src") !== url) this.picture.src = url;
  }

  /** Shows the first frame as the video has it. @param {import("../drawing/scene.js").Video | null} video */
  setVideo(video) {
    if (video?.aspect === this.video?.aspect && video?.fit === this.video?.fit) return;
    this.video = video;
    this.picture.style.objectFit = video?.fit ?? "fill";
    this.#changed();
  }

  /** Shows the whole path, or a part with these measures, in every view. @param {Sizes} sizes */
  fit(sizes = measure(this.state)) {
    this.sizes = sizes;
    for (const pane of this.panes) pane.fit(sizes);
    this.#changed();
  }

  // The playhead

  /** Stops playing and flying. */
  #rest(frame = 0) {
    this.frame = frame; // under the playhead; between two frames while playing
    this.flight = null;
    this.playing = null; // frames of the video that have been played, before easing
  }

  /** Puts the playhead on a frame. A flight or a playback ends. */
  scrub(frame) {
    if (this.flight) this.land();
    this.#rest(clamp(Math.round(frame), 0, this.state.frames - 1));
    this.redraw();
  }

  /** Plays from the playhead; from the start where that is at the end, or where easing moves frames in time. */
  play() {
    const canContinue = this.state.ease === "linear" && this.frame < this.state.frames - 1;
    this.scrub(canContinue ? this.frame : 0);
    this.playing = this.frame;
  }

  /** Begins a flight at the playhead; with `room`, the number of frames there are for it, it is recorded. */
  takeOff({ room = 0 } = {}) {
    const { pose, state: { fps } } = this, start = Math.round(this.frame);
    this.panels.close();
    this.#rest(start);
    const help = words("WASD move, IJKL or drag look, Enter sets a keyframe, Esc ends");
    const recording = () => words("Records from frame {start} once you move. {help}", { start, help });
    this.say(room > 0 ? recording() : words("{help}, R records", { help }));
    this.recordStart = start;
    this.flight = new Flight(pose, fps, room);
  }

  /** The newest frame of the flight under way; a recording at the end goes beyond the video's frames. */
  get recordedFrame() {
    return this.recordStart + this.flight.poses.length - 1;
  }

  /** Ends the flight; what was recorded becomes keyframes. */
  land() {
    const { flight: { recording, poses }, recordStart: start } = this, end = start + poses.length - 1;
    this.#rest(this.frame);
    this.say("");
    this.redraw();
    if (!recording || end === start) return;
    this.edit(replaceWithRecording(this.state, start, poses));
    this.fit();
    const frames = words("Recorded frames {start} to {end}", { start, end });
    this.say(end < this.state.frames - 1 ? words("{frames}, then stands still", { frames }) : frames);
  }

  // Drawing

  #changed() {
    this.builtScene = null;
    this.frame = Math.min(this.frame, this.state.frames - 1);
    this.element.style.setProperty("--lbw-aspect", this.aspect);
    this.redraw();
  }

  /** Has a pane, or everything, drawn in the next animation frame. */
  redraw(pane) {
    for (const stale of pane ? [pane] : [...this.panes, this.fields, this.panels]) this.stale.add(stale);
    this.request ??= requestAnimationFrame((now) => this.#drawFrame(now));
  }

  #drawFrame(now) {
    const seconds = this.drawnAt ? (now - this.drawnAt) / 1000 : 0;
    const moving = this.#advance(seconds);
    this.drawnAt = moving ? now : 0;
    this.request = null;
    if (this.element.clientWidth === 0) return; // the editor is not shown
    this.sharpness = sharpnessOf(this.element);
    const theme = readTheme(this.element);
    for (const stale of this.stale) stale.draw(this.scene, theme);
    this.stale.clear();
    if (moving) this.redraw();
  }

  /** Lets playback and flight go on by so many seconds; returns whether anything is under way. */
  #advance(seconds) {
    const { state, flight } = this;
    if (this.playing !== null) {
      this.playing = (this.playing + seconds * state.fps * this.speed) % state.frames;
      this.frame = easedTime(state, Math.min(this.playing, state.frames - 1));
    }
    const flying = flight?.advance(seconds);
    if (flight?.recording) this.frame = Math.min(this.recordedFrame, state.frames - 1);
    if (flight?.finished) this.land();
    return this.playing !== null || flying;
  }
}
