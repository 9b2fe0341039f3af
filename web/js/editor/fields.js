// The fields and the state of the buttons below and above the views.

import { fromAngles, heldPitch, toAngles } from "../math/quaternions.js";
import { complaint } from "../path/document.js";
import { EASINGS } from "../math/easing.js";
import { easedKeyframe, setFrames, setKeyframeEase } from "../path/edits.js";
import { words } from "../../live/words.mjs";

const POSITION_DECIMALS = 3;
const ANGLE_DECIMALS = 1;
const PITCH = 4; // the number of its field

const SPEEDS = [0.25, 0.5, 1, 2, 4];

const DECIMAL_COMMA = (1.5).toLocaleString().includes(","); // of the browser's language
const WITH_COMMA = /^\s*[-+]?\d*,\d*\s*$/; // a typed comma, or a pasted number with one

const rounded = (value, decimals) => Number(value.toFixed(decimals)) + 0; // adding 0 turns -0 into 0

/** Position and angles in degrees, as the fields data-pose="0" to "5" count them. */
const poseNumbers = ({ position, quaternion }) => [...position, ...toAngles(quaternion)];

/** Shows the document's numbers and takes those that are typed. */
export class Fields {
  /** @param {import("./editor.js").Editor} editor */
  constructor(editor) {
    this.editor = editor;
    this.inputs = [...editor.element.querySelectorAll("[data-pose], [data-setting]")];
    this.keyEase = editor.find("[data-key-ease]");
    this.speed = editor.find("[data-speed]");
    const easings = () => Object.keys(EASINGS).map((name) => new Option(name.replaceAll("_", " "), name));
    editor.find("[data-setting=ease]").append(...easings());
    this.keyEase.append(...easings());
    this.speed.append(...SPEEDS.map((speed) => new Option(`${speed}x`, speed, speed === 1, speed === 1)));
    this.keyEase.addEventListener("change", () => this.#takeKeyEase());
    this.speed.addEventListener("change", () => { editor.speed = Number(this.speed.value); });
    this.changed = null; // the field in which someone has typed since its value was last taken or shown
    this.stretched = null; // the state that came of another length, and the one that it was made from
    for (const input of this.inputs) this.#listen(input);
  }

  #listen(input) {
    input.addEventListener("input", () => this.#begin(input));
    input.addEventListener("change", () => this.#take(input));
    input.addEventListener("blur", () => this.#restore(input));
    input.addEventListener("keydown", (event) => this.#giveUp(event));
    input.addEventListener("beforeinput", (event) => this.#takeComma(event));
  }

  /** Someone types: what is typed is for the keyframe of now, so a playback ends. */
  #begin(input) {
    this.changed = input;
    if (this.editor.playing !== null) this.editor.scrub(this.editor.frame);
  }

  /** The field that holds what someone typed and did not finish, or null. @returns {HTMLInputElement | null} */
  get typing() {
    const { changed } = this;
    return changed && changed.value !== this.#shownIn(changed, poseNumbers(this.editor.pose)) ? changed : null;
  }

  /**
   * Takes what was typed where a pointer goes on to another element, or a key runs something: it is meant for the
   * keyframe at the playhead of now.
   */
  settle(goesTo = null) {
    const { typing } = this;
    if (typing === goesTo) return;
    typing?.blur();
    if (!goesTo) typing?.focus({ preventScroll: true });
  }

  /** Escape brings back the value from before the typing; if nothing was typed it means what it does elsewhere. */
  #giveUp(event) {
    const { key, target } = event, wasRefused = target.ariaInvalid === "true";
    if (key !== "Escape" || (this.typing !== target && !wasRefused)) return;
    event.stopPropagation();
    this.#restore(target);
    this.editor.say("");
  }

  /** A browser whose language has a decimal point drops a comma that is typed or pasted, so that 1,5 would be 15. */
  #takeComma(event) {
    if (DECIMAL_COMMA || !WITH_COMMA.test(event.data ?? "")) return;
    event.preventDefault();
    document.execCommand("insertText", false, event.data.trim().replace(",", "."));
  }

  /** Takes what was typed or chosen. A field that was cleared keeps its value, and so does one that is refused. */
  #take(input) {
    const { dataset: { pose, setting }, value, type, validity } = input;
    const typed = type === "number" ? Number.parseFloat(value) : value;
    const wrong = validity.badInput ? words("expected a number") : complaint(setting ?? "position", typed);
    const wasCleared = value === "" && !validity.badInput;
    this.changed = null;
    input.ariaInvalid = wrong !== null && !wasCleared;
    if (wasCleared) this.#restore(input);
    else if (wrong) this.editor.say(`${input.ariaLabel}: ${wrong}`);
    else if (setting) this.#takeSetting(setting, typed);
    else this.#takePose(Number(pose), typed);
    this.editor.redraw();
  }

  /** Shows the document's value again. */
  #restore(input) {
    input.ariaInvalid = false;
    this.changed = null;
    input.value = this.#shownIn(input, poseNumbers(this.editor.pose));
  }

  #takeSetting(setting, typed) {
    const { editor } = this;
    if (setting === "frames") this.#stretch(typed);
    else editor.edit({ ...editor.state, [setting]: typed });
  }

  /**
   * Another length. Those that come one after the other, as arrow keys give them, are made of what there was before the
   * first: keyframes that were rounded, or met, are where they were when the length comes back.
   */
  #stretch(frames) {
    const { editor, stretched } = this;
    const from = editor.state === stretched?.to ? stretched.from : editor.state;
    editor.edit(setFrames(from, frames));
    this.stretched = { from, to: editor.state };
  }

  #takeKeyEase() {
    const { editor } = this;
    const { frame } = easedKeyframe(editor.state, editor.frame);
    editor.edit(setKeyframeEase(editor.state, frame, this.keyEase.value));
  }

  #takePose(index, typed) {
    const value = index === PITCH ? heldPitch(typed) : typed;
    const numbers = poseNumbers(this.editor.pose).with(index, value);
    this.editor.setPose({ position: numbers.slice(0, 3), quaternion: fromAngles(...numbers.slice(3)) });
  }

  /** Brings fields and buttons up to date; leaves a field alone in which someone types, or whose value was refused. */
  draw() {
    const { editor, typing } = this;
    const shown = poseNumbers(editor.pose);
    for (const input of this.inputs) {
      const value = this.#shownIn(input, shown);
      if (input !== typing && input.ariaInvalid !== "true" && input.value !== value) input.value = value;
    }
    const frame = editor.flight?.recording ? editor.recordedFrame : Math.round(editor.frame);
    editor.find("output").textContent = `${frame} / ${editor.state.frames - 1}`;
    this.#drawKeyEase();
    this.#drawButtons();
  }

  /** The easing of the keyframe at or before the playhead; none where no way leads on from it. */
  #drawKeyEase() {
    const key = easedKeyframe(this.editor.state, this.editor.frame);
    this.keyEase.disabled = key === undefined;
    this.keyEase.value = key?.ease ?? "linear";
  }

  #shownIn({ dataset: { pose, setting } }, shown) {
    if (setting) return String(this.editor.state[setting]);
    const decimals = Number(pose) < 3 ? POSITION_DECIMALS : ANGLE_DECIMALS;
    return String(rounded(shown[pose], decimals));
  }

  #drawButtons() {
    const { editor } = this;
    const isOn = {
      play: editor.playing !== null,
      snap: editor.snap,
      loop: editor.state.loop,
      camera: editor.inside,
      fly: editor.flight !== null,
      record: editor.flight?.recording ?? false,
    };
    for (const [name, on] of Object.entries(isOn)) editor.find(`[data-command=${name}]`).ariaPressed = on;
  }
}
