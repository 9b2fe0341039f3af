// The delays of the live page in Chromium: from a key to its frame in the first and the last minute, and after four
// seconds without animation frames; from a turn of the mouse to the rotated image.
//
//     lingbot-world live MAZE --no_open --port 8765 &
//     node tools/bench/bench_page.mjs http://127.0.0.1:8765/ [MINUTES, 5]
//
// Prints JSON, in milliseconds. playwright-core is that of tests/browser (npm ci there).

import { launch } from "../../tests/browser/canvas.mjs";

const [address, minutes = "5"] = process.argv.slice(2);
const MINUTE = 60_000, HELD_MS = 4000, SETTLE_MS = 2000, WARM_MS = 4000;
const KEYS = ["w", "a", "s", "d", "j", "l"];
const median = (values) => values.toSorted((one, other) => one - other)[Math.floor(values.length / 2)] ?? null;

/** Records the page's own delays, and lets animation frames be held back. Runs in the page. */
function record() {
  Object.defineProperty(Document.prototype, "pointerLockElement", { get: () => (window.locked ? document.querySelector("canvas") : null) });
  const request = window.requestAnimationFrame.bind(window), held = [];
  window.requestAnimationFrame = (draw) => request((now) => { if (window.stopped) held.push(draw); else draw(now); });
  window.stop = (stopped) => { window.stopped = stopped; if (!stopped) held.splice(0).forEach((draw) => window.requestAnimationFrame(draw)); };
  window.delays = { key: [], turn: [] };
  window.wrap = async () => {
    const { Figures } = await import("./live/figures.mjs"), { seen, turned } = Figures.prototype;
    Figures.prototype.seen = function (frame, answers) { window.delays.key.push(...answers); return seen.call(this, frame, answers); };
    Figures.prototype.turned = function (late) { window.delays.turn.push(late); return turned.call(this, late); };
  };
}

const browser = await launch();
const page = await browser.newPage({ viewport: { width: 1280, height: 760 } });
await page.addInitScript(record);
await page.goto(address);
await page.locator(".pictures button[aria-pressed=true]").waitFor();
await page.evaluate(() => window.wrap());
await page.click("[data-command=go]");
await page.locator(".stage[data-seen]").waitFor();

let seed = 1;
const chance = () => { seed = (seed * 1103515245 + 12345) % 2147483648; return seed / 2147483648; };

/** Presses and releases random keys, as people do. @returns the delays from each key to its frame */
async function walk(milliseconds) {
  await page.evaluate(() => { window.delays = { key: [], turn: [] }; });
  for (const ends = Date.now() + milliseconds; Date.now() < ends;) {
    const key = KEYS[Math.floor(KEYS.length * chance())];
    await page.keyboard.down(key);
    await page.waitForTimeout(500 + 1000 * chance());
    await page.keyboard.up(key);
    await page.waitForTimeout(100 + 300 * chance());
  }
  return page.evaluate(() => window.delays.key);
}

/** Turns by the mouse while W is held. @returns the delays from each turn to the rotated image */
async function turn() {
  await page.evaluate(() => { window.locked = true; window.delays.turn = []; });
  await page.keyboard.down("w");
  for (let times = 0; times < 40; times++) {
    await page.evaluate((right) => document.dispatchEvent(new MouseEvent("mousemove", { movementX: right })), times % 20 < 10 ? 15 : -15);
    await page.waitForTimeout(40 + 40 * chance());
  }
  await page.keyboard.up("w");
  return page.evaluate(() => { window.locked = false; return window.delays.turn; });
}

await walk(WARM_MS);
const first = await walk(MINUTE);
await walk(Math.max(0, Number(minutes) - 2) * MINUTE);
const last = await walk(MINUTE);
await page.keyboard.down("w");
await page.evaluate(() => window.stop(true));
await page.waitForTimeout(HELD_MS);
await page.evaluate(() => window.stop(false));
await page.keyboard.up("w");
await page.waitForTimeout(SETTLE_MS);
const after = await walk(MINUTE / 3), turns = await turn();
console.log(JSON.stringify({
  first_minute_p50: median(first), last_minute_p50: median(last), after_hidden_p50: median(after), turn_p50: median(turns),
  keys: first.length + last.length + after.length, turns: turns.length,
}, (_, value) => (typeof value === "number" ? Math.round(value) : value), 1));
await browser.close();
