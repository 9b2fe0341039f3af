// What buttons (data-command in editor.html) and keys do.

import { duplicateKeyframe, keyframeAt, removeKeyframe } from "./state.js";

const SHORTCUTS = {
  " ": "play", f: "fly", r: "record", c: "camera", g: "snap", 0: "fit", Escape: "escape",
  Enter: "add", Delete: "remove", Backspace: "remove",
  ArrowLeft: "back", ArrowRight: "forward", Home: "first", End: "last", PageUp: "before", PageDown: "after",
};
const CONTROL_SHORTCUTS = { z: "undo", "shift+z": "redo", y: "redo", d: "duplicate" };

/** The command that a key press stands for, if any. */
export function commandFor({ key, ctrlKey, metaKey, shiftKey }) {
  if (ctrlKey || metaKey) return CONTROL_SHORTCUTS[(shiftKey ? "shift+" : "") + key.toLowerCase()];
  return SHORTCUTS[key.length === 1 ? key.toLowerCase() : key];
}

export const commandsOf = (editor) => ({
  undo: () => editor.travel(-1),
  redo: () => editor.travel(1),
  add: () => editor.setPose(editor.pose),
  duplicate: () => {
    const [state, frame] = duplicateKeyframe(editor.state, Math.round(editor.frame));
    editor.edit(state);
    editor.scrub(frame);
  },
  remove: () => {
    if (!keyframeAt(editor.state, editor.frame)) editor.say("There is no keyframe at this frame");
    else if (editor.state.keyframes.length === 1) editor.say("A path needs one keyframe");
    else editor.edit(removeKeyframe(editor.state, editor.frame));
  },
  snap: () => { editor.snap = !editor.snap; },
  loop: () => editor.edit({ ...editor.state, loop: !editor.state.loop }),
  camera: () => { editor.camera = !editor.camera; },
  fly: () => (editor.flight ? editor.land() : editor.takeOff(false)),
  record: () => (editor.flight?.recording ? editor.land() : editor.takeOff(true)),
  fit: () => editor.fit(),
  play: () => (editor.playing === null ? editor.play() : editor.scrub(editor.frame)),
  json: () => editor.togglePanel(editor.find(".lbw-json").hidden),
  copyJson: () => {
    editor.find("textarea").select();
    document.execCommand("copy"); // navigator.clipboard is missing where ComfyUI is served over plain http
    editor.say("Copied");
  },
  applyJson: () => editor.paste(editor.find("textarea").value),
  back: (event) => editor.scrub(editor.frame - (event.shiftKey ? 10 : 1)),
  forward: (event) => editor.scrub(editor.frame + (event.shiftKey ? 10 : 1)),
  first: () => editor.scrub(0),
  last: () => editor.scrub(Infinity),
  before: () => editor.scrub(editor.state.keyframes.findLast(({ frame }) => frame < editor.frame)?.frame ?? 0),
  after: () => editor.scrub(editor.state.keyframes.find(({ frame }) => frame > editor.frame)?.frame ?? Infinity),
  escape: () => {
    if (editor.flight) editor.land();
    editor.togglePanel(false);
  },
});
