// 200 keyframes at 60 frames a second. Seconds depend on the machine and on what else it does. So what is held to a limit
// is the number of canvas calls that the editor makes for a frame. Its time and the intervals between frames are reported.

import assert from "node:assert/strict";
import { settle } from "./canvas.mjs";
import { addEditorNode, clearGraph, inBothRenderers, middle, savedState, setText } from "./editor.mjs";

const CALLS = 65; // of the canvas for a keyframe, in all views together
const FRAMES = 40;
const keyframes = Array.from({ length: 200 }, (_, i) => ({ frame: i * 4, position: [Math.sin(i / 9), -i / 200, i / 20],
  quaternion: [0, Math.sin(i / 60), 0, Math.cos(i / 60)] }));
const PATH = JSON.stringify({ version: 1, frames: 801, fps: 16, fov_deg: 79, ease: "linear", loop: false, keyframes });

/**
 * Has the page time every callback that the editor's scripts give to listeners and animation frames from now on (`own`, ms),
 * and count what these call of a canvas (`calls`), until `window.uninstrument`.
 */
const instrument = (page) => page.evaluate(() => {
  Object.assign(window, { own: 0, calls: 0 });
  let inside = false;
  const scripts = /\/js\/(editor|panes|drawing|path|comfy)\//;
  const timed = (callback) => (!scripts.test(new Error().stack) ? callback : function (...args) {
    const start = performance.now();
    inside = true;
    try {
      return callback.apply(this, args);
    } finally {
      inside = false;
      window.own += performance.now() - start;
    }
  });
  const { requestAnimationFrame } = window, { addEventListener } = EventTarget.prototype;
  window.requestAnimationFrame = (callback) => requestAnimationFrame(timed(callback));
  EventTarget.prototype.addEventListener = function (type, listener, options) {
    const wrapped = this instanceof Element && typeof listener === "function" ? timed(listener) : listener;
    return addEventListener.call(this, type, wrapped, options);
  };
  const canvas = CanvasRenderingContext2D.prototype, plain = Object.getOwnPropertyDescriptors(canvas);
  for (const [name, { value }] of Object.entries(plain)) {
    if (typeof value !== "function" || name === "constructor") continue;
    canvas[name] = function (...args) {
      window.calls += inside;
      return value.apply(this, args);
    };
  }
  window.uninstrument = () => {
    window.requestAnimationFrame = requestAnimationFrame;
    EventTarget.prototype.addEventListener = addEventListener;
    Object.defineProperties(canvas, plain);
  };
});

/**
 * Moves the mouse about a point for some frames. Returns the median interval between frames, and of the frames in which
 * the editor drew: how many, its time (median and 95th percentile) and the most canvas calls.
 */
async function frames(page, [x, y], [width, height]) {
  await page.mouse.move(x, y);
  const measured = page.evaluate((count) => new Promise((resolve) => {
    const intervals = [], drawn = [];
    let before = null;
    const tick = (now) => {
      if (before !== null) {
        intervals.push(now - before);
        if (window.calls) drawn.push({ own: window.own, calls: window.calls });
      }
      Object.assign(window, { own: 0, calls: 0 });
      before = now;
      if (intervals.length < count) requestAnimationFrame(tick);
      else resolve({ intervals, drawn });
    };
    requestAnimationFrame(tick);
  }), FRAMES);
  let running = true;
  measured.then(() => { running = false; });
  for (let i = 0; running; i += 1) await page.mouse.move(x + width * Math.sin(i / 9), y + height * Math.sin(i / 7));
  const { intervals, drawn } = await measured;
  const at = (values, part) => values.sort((a, b) => a - b)[Math.floor(part * (values.length - 1))] ?? 0;
  const [own, calls] = ["own", "calls"].map((key) => drawn.map((frame) => frame[key]));
  return { drawn: drawn.length, interval: at(intervals, 0.5), own: at(own, 0.5), slowOwn: at(own, 0.95),
    calls: at(calls, 1) };
}

/** Screen point of a keyframe in the view from above, which fits x from -1 to 1 and z from 0 to 9.95. */
async function keyframeAbove(editor, index) {
  const box = await editor.locator("[data-view=top]").boundingBox(), { position: [x, , z] } = keyframes[index];
  const column = (axis) => keyframes.map((key) => key.position[axis]);
  const [low, high] = [Math.min, Math.max].map((bound) => [0, 1, 2].map((axis) => bound(...column(axis))));
  const margin = 0.45 * Math.hypot(...high.map((value, axis) => value - low[axis]));
  const scale = Math.min(box.width / (high[0] - low[0] + margin), box.height / (high[2] - low[2] + margin));
  return [box.x + box.width / 2 + (x - (low[0] + high[0]) / 2) * scale,
    box.y + box.height / 2 - (z - (low[2] + high[2]) / 2) * scale];
}

const told = ({ drawn, interval, own, slowOwn, calls }) =>
  `frames ${interval.toFixed(1)} ms; the editor draws in ${drawn} of ${FRAMES}, ${own.toFixed(1)} ms, 95 % `
  + `${slowOwn.toFixed(1)}, ${calls} canvas calls at most`;

inBothRenderers((it, vue) => {
  it("draws 200 keyframes with few canvas calls a frame", async (page) => {
    await clearGraph(page);
    await instrument(page);
    const editor = await addEditorNode(page);
    const measure = async (name, from, size, pressed = true) => {
      await page.mouse.move(...from);
      if (pressed) await page.mouse.down();
      const found = await frames(page, from, size);
      if (pressed) await page.mouse.up();
      console.log(`# ${vue ? "Nodes 2.0" : "classic"}, ${name}: ${told(found)}`);
      return found;
    };
    await setText(page, PATH);
    await settle(page);
    const world = await middle(editor.locator("[data-view=world]")), line = await middle(editor.locator("[data-view=time]"));
    await measure("mouse over the empty graph", [1000, 500], [80, 30], false);
    const { drawn } = await measure("mouse over the editor", world, [80, 30], false);
    assert.equal(drawn, 0);
    const holds = async (...drag) => {
      const found = await measure(...drag);
      assert.ok(found.drawn > 3 && found.calls < CALLS * keyframes.length, told(found));
    };
    await holds("orbit", world, [80, 30]);
    await holds("scrub", [line[0], line[1] - 10], [120, 0]);
    await page.mouse.click(line[0], line[1] - 10); // keyframe 100
    await holds("drag a keyframe", await keyframeAbove(editor, 100), [30, 15]);
    assert.notDeepEqual((await savedState(page)).keyframes[100].position, keyframes[100].position);
    await page.evaluate(() => window.uninstrument());
  });
});
