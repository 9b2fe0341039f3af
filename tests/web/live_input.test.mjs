import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { Input } from "../../web/live/input.mjs";

globalThis.Element = class extends EventTarget { closest() { return null; } };

/** A line that a prompt is typed into. */
class Line extends Element { closest() { return this; } }

let page, told, end, input;

beforeEach(() => {
  globalThis.window = new EventTarget();
  page = new EventTarget();
  told = [];
  end = new AbortController();
  const knob = { style: {} }, canvas = new EventTarget();
  const stage = { querySelector: (selector) => (selector === "canvas" ? canvas : knob) };
  input = new Input(stage, (kind, payload) => {
    if (kind === "camera_actions") told.push(payload.transitions[0].actions.join(""));
  }, page, end.signal);
  input.active = true;
});
afterEach(() => end.abort());

/** A key goes down or comes up. */
function key(type, code, more = {}, target = page) {
  return happens(Object.assign(new Event(type, { cancelable: true }), { code, key: "", ...more }), target);
}

function happens(event, target) {
  Object.defineProperty(event, "target", { value: target });
  page.dispatchEvent(event);
  return event;
}

test("a key that comes up while Control or Alt is held is let go of, and one that goes down then is not ours", () => {
  for (const held of ["ctrlKey", "altKey", "metaKey"]) {
    told.length = 0;
    key("keydown", "KeyW");
    key("keyup", "KeyW", { [held]: true });
    assert.deepEqual(told, ["w", ""], held);
    assert.ok(!key("keydown", "KeyW", { [held]: true }).defaultPrevented);
    assert.deepEqual(told, ["w", ""], held);
  }
});

test("where a line gets the focus nothing is held any more, and keys that are typed are not ours", () => {
  key("keydown", "KeyW");
  happens(new Event("focusin"), new Line());
  assert.deepEqual(told, ["w", ""]);
  key("keydown", "KeyW", {}, new Line());
  const up = key("keyup", "KeyW", {}, new Line());
  assert.deepEqual(told, ["w", ""]);
  assert.ok(!up.defaultPrevented);
});

test("with Command all is let go of: macOS tells nothing of keys that come up meanwhile", () => {
  key("keydown", "KeyW");
  key("keydown", "MetaLeft", { key: "Meta", metaKey: true });
  assert.deepEqual(told, ["w", ""]);
});
