// What buttons (data-command in editor.html) and keys do.

import { MOST_FRAMES, parse } from "../path/document.js";
import { duplicateKeyframe, keyframeAt, removeKeyframe, toggleLoop } from "../path/edits.js";
import { words } from "../../live/words.mjs";

/**
 * @typedef {import("./editor.js").Editor} Editor
 * @typedef {object} Command
 * @property {(editor: Editor, event: MouseEvent | KeyboardEvent) => void} run
 * @property {string[]} [keys]  that stand for it, as `pressedKey` names them
 * @property {boolean} [repeats]  whether it is done again and again while its key is held
 */

/** Moves the playhead to a side (-1 or 1), by ten frames with shift. */
const jump = (editor, side, { shiftKey }) => editor.scrub(editor.frame + side * (shiftKey ? 10 : 1));

function duplicate(editor) {
  const [state, frame] = duplicateKeyframe(editor.state, Math.round(editor.frame));
  editor.edit(state);
  editor.scrub(frame);
}

function remove(editor) {
  if (!keyframeAt(editor.state, editor.frame)) editor.say(words("There is no keyframe at this frame"));
  else if (editor.state.keyframes.length === 1) editor.say(words("A path needs one keyframe"));
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
  editor.say(words("Copied"));
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
  editor.say(words("The path of a new node; Undo brings yours back"));
}

function escape(editor) {
  if (editor.flight) editor.land();
  else editor.panels.close();
}

/** @type {Record<string, Command>} */
export const COMMANDS = {
  undo: { run: (editor) => editor.travel(-1), keys: ["control+z"], repeats: true },
  redo: { run: (editor) => editor.travel(1), keys: ["control+shift+z", "control+y"], repeats: true },
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
  back: { run: (editor, event) => jump(editor, -1, event), keys: ["ArrowLeft"], repeats: true },
  forward: { run: (editor, event) => jump(editor, 1, event), keys: ["ArrowRight"], repeats: true },
  first: { run: (editor) => editor.scrub(0), keys: ["Home"] },
  last: { run: (editor) => editor.scrub(Infinity), keys: ["End"] },
  before: { run: goToKeyframeBefore, keys: ["PageUp"], repeats: true },
  after: { run: goToKeyframeAfter, keys: ["PageDown"], repeats: true },
  escape: { run: escape, keys: ["Escape"] },
};

/**
 * The name of a key, letters in lower case. Where a keyboard writes letters that are not Latin, a key counts as the
 * letter that it has on one that does. @type {(event: KeyboardEvent) => string}
 */
export function keyName({ key, code }) {
  if (key.length > 1) return key;
  const isOtherLetter = key > "\u007f" && /^Key[A-Z]$/.test(code);
  return (isOtherLetter ? code.at(-1) : key).toLowerCase();
}

/** A key press in words: its key, with "control+" and "shift+" before it where control and shift are held. */
function pressedKey(event) {
  const { ctrlKey, metaKey, shiftKey } = event, name = keyName(event);
  if (!ctrlKey && !metaKey) return name;
  return shiftKey ? `control+shift+${name}` : `control+${name}`;
}

/** The command that a key press stands for, if any. @type {(event: KeyboardEvent) => Command | undefined} */
export function commandFor(event) {
  const pressed = pressedKey(event);
  return Object.values(COMMANDS).find(({ keys = [] }) => keys.includes(pressed));
}
