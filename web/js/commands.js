// What buttons (data-command in editor.html) and keys do.

import { duplicateKeyframe, keyframeAt, removeKeyframe, toggleLoop } from "./state.js";

const before = ({ frame, state }) => state.keyframes.findLast((key) => key.frame < frame)?.frame ?? 0;
const after = ({ frame, state }) => state.keyframes.find((key) => key.frame > frame)?.frame ?? Infinity;

/** By name: what it does to an editor, given the event, and the keys that stand for it. */
export const COMMANDS = {
  undo: [(editor) => editor.travel(-1), "control+z"],
  redo: [(editor) => editor.travel(1), "control+shift+z", "control+y"],
  add: [(editor) => editor.setPose(editor.pose), "Enter"],
  duplicate: [(editor) => {
    const [state, frame] = duplicateKeyframe(editor.state, Math.round(editor.frame));
    editor.edit(state);
    editor.scrub(frame);
  }, "control+d"],
  remove: [(editor) => {
    if (!keyframeAt(editor.state, editor.frame)) editor.say("There is no keyframe at this frame");
    else if (editor.state.keyframes.length === 1) editor.say("A path needs one keyframe");
    else editor.edit(removeKeyframe(editor.state, editor.frame));
  }, "Delete", "Backspace"],
  snap: [(editor) => { editor.snap = !editor.snap; }, "g"],
  loop: [(editor) => editor.edit(toggleLoop(editor.state))],
  camera: [(editor) => { editor.camera = !editor.camera; }, "c"],
  fly: [(editor) => (editor.flight ? editor.land() : editor.takeOff(false)), "f"],
  record: [(editor) => (editor.flight?.recording ? editor.land() : editor.takeOff(true)), "r"],
  fit: [(editor) => editor.fit(), "0"],
  play: [(editor) => (editor.playing === null ? editor.play() : editor.scrub(editor.frame)), " "],
  json: [(editor) => editor.togglePanel(editor.find(".lbw-json").hidden)],
  copyJson: [(editor) => {
    editor.find("textarea").select();
    document.execCommand("copy"); // navigator.clipboard is missing where ComfyUI is served over plain http
    editor.say("Copied");
  }],
  applyJson: [(editor) => editor.paste(editor.find("textarea").value)],
  back: [(editor, { shiftKey }) => editor.scrub(editor.frame - (shiftKey ? 10 : 1)), "ArrowLeft"],
  forward: [(editor, { shiftKey }) => editor.scrub(editor.frame + (shiftKey ? 10 : 1)), "ArrowRight"],
  first: [(editor) => editor.scrub(0), "Home"],
  last: [(editor) => editor.scrub(Infinity), "End"],
  before: [(editor) => editor.scrub(before(editor)), "PageUp"],
  after: [(editor) => editor.scrub(after(editor)), "PageDown"],
  escape: [(editor) => (editor.flight ? editor.land() : editor.togglePanel(false)), "Escape"],
};

/** The command that a key press stands for, if any. */
export function commandFor({ key, ctrlKey, metaKey, shiftKey }) {
  const name = key.length === 1 ? key.toLowerCase() : key, control = shiftKey ? "control+shift+" : "control+";
  const pressed = ctrlKey || metaKey ? control + name : name;
  return Object.keys(COMMANDS).find((command) => COMMANDS[command].includes(pressed));
}
