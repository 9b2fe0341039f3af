// What buttons (data-command in editor.html) and keys do.

import { MOST_FRAMES, parse } from "../path/document.js";
import { duplicateKeyframe, keyframeAt, removeKeyframe, toggleLoop } from "../path/edits.js";

/**
 * @typedef {import("./editor.js").Editor} Editor
 * @typedef {object} Command
 * @property {(editor: Editor, event: MouseEvent | KeyboardEvent) => void} run
 * @property {string[]} [keys]  that stand for it, as `pressedKey` names them
 */

const jumpLength = (event) => (event.shiftKey ? 10 : 1);

function duplicate(editor) {
  const [state, frame] = duplicateKeyframe(editor.state, Math.round(editor.frame));
  editor.edit(state);
  editor.scrub(frame);
}

function remove(editor) {
  if (!keyframeAt(editor.state, editor.frame)) editor.say("There is no keyframe at this frame");
  else if (editor.state.keyframes.length === 1) editor.say("A path needs one keyframe");
  else editor.edit(removeKeyframe(editor.state, editor.frame));
}

function goToKeyframeBefore(editor) {
  const key = editor.state.keyframes.findLast(({ frame }) => frame < editor.frame);
  editor.scrub(key?.frame ?? 0);
}

function goToKeyframeAfter(editor) {
  const key = editor.state.keyframes.find(({ frame }) => frame > editor.frame);
  editor.scrub(key?.frame ?? Infinity);
}

function copyText(editor) {
  editor.panels.text.select();
  document.execCommand("copy"); // navigator.clipboard is missing where ComfyUI is served over plain http
  editor.say("Copied");
}

/** Records to the end of the video. At the end there is nothing left of it, so the user is asked what to do. */
function record(editor) {
  const start = Math.round(editor.frame);
  const room = editor.state.frames - start;
  if (editor.flight?.recording) editor.land();
  else if (room === 1) editor.panels.open("ask");
  else editor.takeOff({ room });
}

function recordFromStart(editor) {
  editor.scrub(0);
  editor.takeOff({ room: editor.state.frames });
}

function openPresets(editor) {
  editor.presets.refresh();
  editor.panels.toggle("presets");
}

/** The path of a new node again. */
function reset(editor) {
  editor.scrub(0);
  editor.edit(parse(editor.initial));
  editor.fit();
  editor.say("The path of a new node; Undo brings yours back");
}

function escape(editor) {
  if (editor.flight) editor.land();
  else editor.panels.close();
}

/** @type {Record<string, Command>} */
export const COMMANDS = {
  undo: { run: (editor) => editor.travel(-1), keys: ["control+z"] },
  redo: { run: (editor) => editor.travel(1), keys: ["control+shift+z", "control+y"] },
  add: { run: (editor) => editor.setPose(editor.pose), keys: ["Enter"] },
  duplicate: { run: duplicate, keys: ["control+d"] },
  remove: { run: remove, keys: ["Delete", "Backspace"] },
  snap: { run: (editor) => { editor.snap = !editor.snap; }, keys: ["g"] },
  loop: { run: (editor) => editor.edit(toggleLoop(editor.state)) },
  camera: { run: (editor) => { editor.camera = !editor.camera; }, keys: ["c"] },
  fly: { run: (editor) => (editor.flight ? editor.land() : editor.takeOff()), keys: ["f"] },
  record: { run: record, keys: ["r"] },
  recordMore: { run: (editor) => editor.takeOff({ room: MOST_FRAMES - Math.round(editor.frame) }) },
  recordAnew: { run: recordFromStart },
  fit: { run: (editor) => editor.fit(), keys: ["0"] },
  play: { run: (editor) => (editor.playing === null ? editor.play() : editor.scrub(editor.frame)), keys: [" "] },
  presets: { run: openPresets, keys: ["p"] },
  savePreset: { run: (editor) => editor.presets.save() },
  reset: { run: reset },
  dismissHint: { run: (editor) => editor.hint.dismiss() },
  json: { run: (editor) => editor.panels.toggle("json") },
  copyJson: { run: copyText },
  applyJson: { run: (editor) => editor.paste(editor.panels.text.value) },
  back: { run: (editor, event) => editor.scrub(editor.frame - jumpLength(event)), keys: ["ArrowLeft"] },
  forward: { run: (editor, event) => editor.scrub(editor.frame + jumpLength(event)), keys: ["ArrowRight"] },
  first: { run: (editor) => editor.scrub(0), keys: ["Home"] },
  last: { run: (editor) => editor.scrub(Infinity), keys: ["End"] },
  before: { run: goToKeyframeBefore, keys: ["PageUp"] },
  after: { run: goToKeyframeAfter, keys: ["PageDown"] },
  escape: { run: escape, keys: ["Escape"] },
};

/** A key press in words: its key, with "control+" and "shift+" before it where control and shift are held. */
function pressedKey({ key, ctrlKey, metaKey, shiftKey }) {
  const name = key.length === 1 ? key.toLowerCase() : key;
  if (!ctrlKey && !metaKey) return name;
  return shiftKey ? `control+shift+${name}` : `control+${name}`;
}

/** The command that a key press stands for, if any. @type {(event: KeyboardEvent) => Command | undefined} */
export function commandFor(event) {
  const pressed = pressedKey(event);
  return Object.values(COMMANDS).find(({ keys = [] }) => keys.includes(pressed));
}
