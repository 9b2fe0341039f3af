// 200 keyframes at 60 frames a second. Held to a limit is the time that the editor's own code takes of a frame; intervals
// between frames depend on what else the machine does, and are reported beside those of the page when the editor rests.

import assert from "node:assert/strict";
import { settle } from "./canvas.mjs";
import { inBothRenderers, middle, savedState, setText } from "./editor.mjs";

const LIMIT = 8; // ms of the 16.7 that a frame has
const FRAMES = 120;
const keyframes = Array.from({ length: 200 }, (_, i) => ({ frame: i * 4, position: [Math.sin(i / 9), -i / 200, i / 20],
  quaternion: [0, Math.sin(i / 60), 0, Math.cos(i / 60)] }));
const PATH = JSON.stringify({ version: 1, frames: 801, fps: 16, fov_deg: 79, ease: "linear", loop: false, keyframes });

/** Has the page time every callback that the editor's scripts gave to listeners and animation frames. */
const instrument = (page) => page.addInitScript(() => {
  window.own = 0;
  const scripts = /\/js\/(editor|panes|drawing|path|comfy)\//;
  const timed = (callback) => (!scripts.test(new Error().stack) ? callback : function (...args) {
    const start = performance.now();
    try {
      return callback.apply(this, args);
    } finally {
      window.own += performance.now() - start;
    }
  });
  const { requestAnimationFrame } = window, { addEventListener } = EventTarget.prototype;
  window.requestAnimationFrame = (callback) => requestAnimationFrame(timed(callback));
  EventTarget.prototype.addEventListener = function (type, listener, options) {
    const wrapped = this instanceof Element && typeof listener === "function" ? timed(listener) : listener;
    return addEventListener.call(this, type, wrapped, options);
  };
});

/**
 * Moves the mouse about a point for some frames. Of the intervals between frames and of the time that the editor's code
 * takes of those in which it draws: the median and the 95th percentile (ms). `delayed`: how much longer than at best
 * the same little work takes here and now, as a measure of what else the machine does.
 */
async function frames(page, [x, y], [width, height]) {
  await page.mouse.move(x, y);
  const measured = page.evaluate((count) => new Promise((resolve) => {
    const found = { intervals: [], own: [], work: [] };
    let before = null;
    const work = () => {
      const start = performance.now();
      for (let i = 0, sum = 0; i < 300000; i += 1) sum += Math.sqrt(i);
      return performance.now() - start;
    };
    const tick = (now) => {
      if (before !== null) {
        found.intervals.push(now - before);
        found.own.push(window.own);
        found.work.push(work());
      }
      window.own = 0;
      before = now;
      if (found.own.length < count) requestAnimationFrame(tick);
      else resolve(found);
    };
    requestAnimationFrame(tick);
  }), FRAMES);
  let running = true;
  measured.then(() => { running = false; });
  for (let i = 0; running; i += 1) await page.mouse.move(x + width * Math.sin(i / 9), y + height * Math.sin(i / 7));
  const { intervals, own, work } = await measured, drawn = own.filter((time) => time > 0.5);
  const at = (values, part) => values.sort((a, b) => a - b)[Math.floor(part * (values.length - 1))] ?? 0;
  return { drawn: drawn.length, interval: at(intervals, 0.5), slowInterval: at(intervals, 0.95),
    own: at(drawn, 0.5), slowOwn: at(drawn, 0.95), delayed: at(work, 0.95) / at(work, 0) };
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

const told = ({ drawn, interval, slowInterval, own, slowOwn, delayed }) =>
  `frames ${interval.toFixed(1)} ms, 95 % ${slowInterval.toFixed(1)}; the editor's code ${own.toFixed(1)} ms, `
  + `95 % ${slowOwn.toFixed(1)}, in ${drawn} of ${FRAMES}; the machine delays by ${delayed.toFixed(1)}`;

const fast = ({ drawn, slowOwn, delayed }) => drawn > 20 && slowOwn < LIMIT * delayed;

inBothRenderers((it, vue) => {
  it("draws 200 keyframes at 60 frames a second", async (page, editor) => {
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
    await measure("mouse over the editor", world, [80, 30], false);
    const holds = async (...drag) => { // one of three tries: what else a machine does only ever makes one slower
      const tries = [];
      while (tries.length < 3 && !tries.some(fast)) tries.push(await measure(...drag));
      assert.ok(tries.some(fast), tries.map(told).join("\n"));
    };
    await holds("orbit", world, [80, 30]);
    await holds("scrub", [line[0], line[1] - 10], [120, 0]);
    await page.mouse.click(line[0], line[1] - 10); // keyframe 100
    await holds("drag a keyframe", await keyframeAbove(editor, 100), [30, 15]);
    assert.notDeepEqual((await savedState(page)).keyframes[100].position, keyframes[100].position);
  });
}, { prepare: instrument });
