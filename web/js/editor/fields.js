// The fields and the state of the buttons below and above the views.

import { fromAngles, toAngles } from "../math/quaternions.js";
import { EASINGS } from "../path/easing.js";
import { setFrames } from "../path/edits.js";

const POSITION_DECIMALS = 3;
const ANGLE_DECIMALS = 1;

const rounded = (value, decimals) => Number(value.toFixed(decimals)) + 0; // adding 0 turns -0 into 0

/** Position and angles in degrees, as the fields data-pose="0" to "5" count them. */
const poseNumbers = ({ position, quaternion }) => [...position, ...toAngles(quaternion)];

/** Shows the document's numbers and takes those that are typed. */
export class Fields {
  /** @param {import("./editor.js").Editor} editor */
  constructor(editor) {
    this.editor = editor;
    this.inputs = [...editor.element.querySelectorAll("[data-pose], [data-setting]")];
    const options = Object.keys(EASINGS).map((name) => new Option(name.replaceAll("_", " "), name));
    editor.find("select").append(...options);
    editor.element.addEventListener("change", ({ target }) => this.#take(target));
  }

  #take({ dataset: { pose, setting }, value, type }) {
    const typed = type === "number" ? Number.parseFloat(value) : value;
    if (setting) this.#takeSetting(setting, typed);
    else if (pose && Number.isFinite(typed)) this.#takePose(Number(pose), typed);
    this.editor.redraw();
  }

  #takeSetting(setting, typed) {
    const { editor } = this;
    if (setting === "frames" && typed) editor.edit(setFrames(editor.state, typed));
    else editor.tryEdit({ ...editor.state, [setting]: typed });
  }

  #takePose(index, typed) {
    const numbers = poseNumbers(this.editor.pose).with(index, typed);
    this.editor.setPose({ position: numbers.slice(0, 3), quaternion: fromAngles(...numbers.slice(3)) });
  }

  /** Brings fields and buttons up to date; leaves the field alone in which someone types. */
  draw() {
    const { editor } = this;
    const shown = poseNumbers(editor.pose);
    for (const input of this.inputs) {
      const value = this.#shownIn(input, shown);
      if (input !== document.activeElement && input.value !== value) input.value = value;
    }
    editor.find("output").textContent = `${Math.round(editor.frame)} / ${editor.state.frames - 1}`;
    this.#drawButtons();
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
