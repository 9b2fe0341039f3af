// The page of a live walk in a real browser: LIVE_URL says where `lingbot-world live` runs; tests/live/test_live_browser.py starts it.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import net from "node:net";
import { after, afterEach, before, describe, test as node } from "node:test";
import { launch, PATIENCE, withSecondTry } from "./canvas.mjs";

const LIMIT = { timeout: 2 * PATIENCE };
const HELD_BATCHES = Number(process.env.HELD_BATCHES ?? 5); // of frames that come while a key is held
const HELD_MS = 6_000; // so long at least W is held,
const HELD_FRAMES = 96; // and so long at 16 a second, however slow the machine is
let browser;
before(async () => { browser = await launch("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"); });
after(() => browser?.close());
const tidy = () => Promise.all(browser.contexts().map((context) => context.close())); // one walks at a time
afterEach(tidy);
const test = (name, limit, body) => node(name, limit, withSecondTry(body, tidy));

/** A page at the beginning; errors thrown in it, and requests to other hosts, are collected. */
async function open(size = { width: 960, height: 600 }, { query = "", script = null, address = process.env.LIVE_URL, ...options } = {}) {
  const context = await browser.newContext({ viewport: size, ...options });
  if (script) await context.addInitScript(script);
  await context.addInitScript(keepNotices);
  context.setDefaultTimeout(PATIENCE);
  const page = Object.assign(await context.newPage(), { faults: [], batches: 0, sent: "" });
  page.on("websocket", (socket) => {
    socket.on("framereceived", ({ payload }) => { page.batches += payload.length > 1000; });
    socket.on("framesent", ({ payload }) => { page.sent += payload.toString("latin1"); });
  });
  page.on("pageerror", (error) => page.faults.push(error.message));
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (url.protocol.startsWith("http") && url.host !== new URL(address).host) page.faults.push(request.url());
  });
  await page.goto(address + query);
  await page.locator(".pictures button[aria-pressed=true]").waitFor();
  return page;
}

/** Keeps in the page what is said over the picture, some of it for two seconds only. */
function keepNotices() {
  window.notices = [];
  addEventListener("DOMContentLoaded", () => {
    const notice = document.querySelector(".notice");
    new MutationObserver(() => window.notices.push(notice.textContent)).observe(notice, { childList: true });
  });
}

/** Waits until words are said over the picture that were not waited for before. */
const told = (page, words) => page.waitForFunction((wanted) => {
  const at = window.notices.findIndex((notice) => notice.includes(wanted));
  window.notices.splice(0, at + 1);
  return at >= 0;
}, words);

/** Goes on with Tab until an element has the focus. */
async function tabTo(page, selector) {
  for (let tries = 0; tries < 60; tries++) {
    if (await page.evaluate((wanted) => document.activeElement.matches(wanted), selector)) return;
    await page.keyboard.press("Tab");
  }
  assert.fail(`Tab does not reach ${selector}`);
}

async function walk(page) {
  await page.evaluate(() => document.querySelector(".stage").removeAttribute("data-seen"));
  await page.click("[data-command=go]");
  await page.locator(".stage[data-seen]").waitFor();
}

const answered = (page) => page.waitForFunction(() => /\d/.test(document.querySelector("[data-figure=latency]").textContent));

/** How bright the canvas is, a number for each of a few places. */
const seen = (page) => page.evaluate(() => {
  const canvas = document.querySelector("canvas"), context = canvas.getContext("2d");
  return [0.2, 0.5, 0.8].flatMap((x) => [0.3, 0.7].map((y) => context.getImageData(x * canvas.width, y * canvas.height, 1, 1).data[1]));
});

/** What *Save > Figures* saves. */
async function measures(page) {
  const [saved] = await Promise.all([page.waitForEvent("download"), page.evaluate(() => document.querySelector("[data-command=measures]").click())]);
  assert.equal(saved.suggestedFilename(), "live.json");
  return JSON.parse(await readFile(await saved.path(), "utf8"));
}

/** Where the camera of the page's walk is: x, y and z of the last pose of its camera path, as the server has it. */
async function place(page) {
  const path = await page.getAttribute("[data-save=path]", "href");
  const zip = Buffer.from(await (await fetch(new URL(path, process.env.LIVE_URL))).arrayBuffer());
  const array = zip.subarray(zip.indexOf("\x93NUMPY", 0, "latin1")), header = 10 + array.readUInt16LE(8);
  const [, kind, count] = array.toString("latin1", 10, header).match(/'<(f[48])'.*\((\d+), 4, 4\)/);
  const read = (at) => (kind === "f8" ? array.readDoubleLE(header + 8 * at) : array.readFloatLE(header + 4 * at));
  return [3, 7, 11].map((entry) => read(16 * (Number(count) - 1) + entry));
}

/** The bar's controls, and what Save offers, that are not wholly in the window. */
function outside() {
  const menu = document.querySelector(".menu");
  menu.open = true;
  const controls = [...document.querySelectorAll(".bar button, .bar summary, .bar input, .bar a")];
  const out = controls.filter((control) => {
    const { left, top, right, bottom } = control.getBoundingClientRect();
    return left < 0 || top < 0 || right > innerWidth || bottom > innerHeight;
  });
  menu.open = false;
  return out.map(({ textContent, name }) => textContent || name);
}

/** A way to the server that can break as networks do: from `silence` on nothing comes by the connections that are open,
 * and none is closed to the page; the server is told that they broke. */
async function network(url) {
  const open = new Set(), { hostname: host, port } = new URL(url);
  const server = net.createServer((near) => {
    const far = net.connect({ host, port }), pair = { near, far };
    open.add(pair);
    near.pipe(far).pipe(near);
    for (const end of [near, far]) end.on("error", () => {}).on("close", () => { if (open.delete(pair)) { near.destroy(); far.destroy(); } });
  });
  await new Promise((resolve) => { server.listen(0, host, resolve); });
  const silence = () => {
    for (const pair of open) {
      open.delete(pair);
      pair.near.unpipe().resume();
      pair.far.unpipe().destroy();
    }
  };
  return { address: `http://${host}:${server.address().port}/`, silence, close: () => server.close() };
}

async function leave(page) {
  await page.click("[data-command=leave]");
  assert.match(await page.textContent(".begin .said"), /^The walk is over\. It is kept in .*walk-\d+\.$/);
  assert.deepEqual(page.faults, []);
  await page.context().close();
}

describe("live", () => {
  test("W is held and the walk goes forward", LIMIT, async () => {
    const page = await open({ width: 1440, height: 900 });
    await walk(page);
    const before = await seen(page);
    await page.keyboard.down("w");
    const pressed = Date.now();
    for (const begun = page.batches; page.batches < begun + HELD_FRAMES / 4 || Date.now() < pressed + HELD_MS;) await page.waitForTimeout(50);
    await page.keyboard.up("w");
    assert.notDeepEqual(await seen(page), before);
    await answered(page);
    assert.match(await page.textContent("[data-figure=latency]"), /^\d+ \/ \d+$/);
    console.log(`# ${await page.textContent("[data-figure=rate]")} frames a second, ${await page.textContent("[data-figure=latency]")} ms`);
    assert.ok((await measures(page)).keys > 0);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= 1440));
    await leave(page);
  });

  test("a network that falls silent: the walk is taken up again, and goes on with what is still held", LIMIT, async (t) => {
    const way = await network(process.env.LIVE_URL);
    t.after(way.close);
    const script = () => {
      window.pad = { connected: true, axes: [0, 0, 0, 0] };
      navigator.getGamepads = () => [window.pad];
    };
    const page = await open(undefined, { address: way.address, script });
    await walk(page);
    await page.keyboard.down("j"); // who steps aside and turns walks in a circle: no wall ends the walk
    await page.evaluate(() => { window.pad.axes = [0.5, 0, 0, 0]; });
    await answered(page);
    way.silence();
    const silent = Date.now();
    await told(page, "connection is lost");
    const begun = page.batches, [x, , z] = await place(page);
    while (page.batches < begun + HELD_BATCHES) await page.waitForTimeout(50);
    console.log(`# taken up after ${Math.round((Date.now() - silent) / 100) / 10} s`);
    for (let moved = false; !moved;) {
      const [right, , ahead] = await place(page);
      moved = Math.hypot(right - x, ahead - z) > 0.05;
    }
    await page.locator(".notice", { hasText: "connection is lost" }).waitFor({ state: "hidden" });
    await page.keyboard.up("j");
    await leave(page);
  });

  test("it is walked with a finger at 390 pixels, in the dark", LIMIT, async () => {
    const page = await open({ width: 390, height: 844 }, { hasTouch: true, isMobile: true, colorScheme: "dark" });
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= 390));
    await walk(page);
    await page.evaluate(() => {
      const canvas = document.querySelector("canvas"), { left, bottom } = canvas.getBoundingClientRect();
      const point = (kind, y) => canvas.dispatchEvent(new PointerEvent(kind, {
        pointerId: 1, pointerType: "touch", bubbles: true, clientX: left + 60, clientY: bottom - y,
      }));
      canvas.setPointerCapture = () => {}; // of a finger that is not there
      point("pointerdown", 60);
      point("pointermove", 110);
    });
    await answered(page);
    assert.ok(await page.locator(".stick.move").isVisible());
    await page.evaluate(() => document.querySelector("canvas").dispatchEvent(new PointerEvent("pointerup", { pointerId: 1 })));
    assert.doesNotMatch(page.sent, /refresh\xc3/);
    await page.locator(".frame").tap(); // the bar has faded
    await page.locator(".bar .refresh").tap();
    await page.locator(".bar [name=prompt]").fill("a maze at night");
    await page.locator(".bar [type=submit]").tap();
    await told(page, "Now: a maze at night");
    assert.match(page.sent, /refresh\xc3/, "at once was not asked for");
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= 390));
    await leave(page);
  });

  test("a gamepad walks, and the mouse looks", LIMIT, async () => {
    const script = () => {
      window.pad = { connected: true, axes: [0, 0, 0, 0] };
      navigator.getGamepads = () => [null, window.pad];
      Object.defineProperty(Document.prototype, "pointerLockElement", { get: () => document.querySelector("canvas") });
    };
    const page = await open(undefined, { script });
    await walk(page);
    await page.evaluate(() => { window.pad.axes = [0, -1, 0, 0]; });
    await answered(page);
    assert.match(page.sent, /stick/);
    await page.evaluate(() => { window.pad.axes = [0.05, 0, 0, 0]; document.dispatchEvent(new MouseEvent("mousemove", { movementX: 90 })); });
    while (!page.sent.includes("look")) await page.waitForTimeout(50);
    await leave(page);
  });

  test("frames come as H.264 and are played by the browser's decoder", LIMIT, async (t) => {
    const page = await open(undefined, { query: "?format=h264" });
    const plays = () => VideoDecoder.isConfigSupported({ codec: "avc1.42E028" }).then(({ supported }) => supported, () => false);
    if (!await page.evaluate(plays)) { t.skip("this browser has no H.264"); return; }
    await walk(page);
    const before = await seen(page);
    await page.keyboard.down("j");
    for (const begun = page.batches; page.batches < begun + HELD_BATCHES;) await page.waitForTimeout(50);
    while (`${await seen(page)}` === `${before}`) await page.waitForTimeout(50); // decoded frames come later
    let measured = await measures(page);
    while (!(measured.frames_a_second > 0)) { // a busy machine has half a second without a frame
      await page.waitForTimeout(200);
      measured = await measures(page);
    }
    assert.equal(measured.format, "h264");
    await leave(page);
  });

  test("frames that are left out are sent smaller, and as at first again when none is", LIMIT, async () => {
    const script = () => { // a hold on the page's websocket
      window.WebSocket = class extends WebSocket { constructor(...words) { super(...words); window.socket = this; } };
    };
    const page = await open(undefined, { script });
    const asked = () => page.sent.split("realtime_preview_max_width").length - 1;
    await walk(page);
    const first = (await measures(page)).format;
    const figures = (dropped, seconds) => page.evaluate(async ([lost, times]) => { // as the server tells them every second
      const { pack } = await import("./live/msgpack.mjs");
      const { buffer } = pack({ type: "status", content: "figures", dropped: lost, paused: false });
      for (let told = 0; told < times; told++) window.socket.onmessage({ data: buffer });
    }, [dropped, seconds]);
    await figures(40, 1);
    while (asked() < 1) await page.waitForTimeout(50);
    const { format } = await measures(page);
    const plays = await page.evaluate(() => import("./live/player.mjs").then(({ playsH264 }) => playsH264()));
    assert.equal(format, plays ? "h264" : "jpeg");
    await figures(0, 13);
    while (asked() < 2) await page.waitForTimeout(50);
    assert.equal((await measures(page)).format, first);
    await leave(page);
  });

  test("the rooms of the package are offered as pictures, each with its prompt, and are walked in", LIMIT, async () => {
    const page = await open();
    const buttons = page.locator(".pictures button");
    await page.waitForFunction(() => [...document.querySelectorAll(".pictures img")].every(({ naturalWidth }) => naturalWidth > 0));
    const titles = await buttons.evaluateAll((all) => all.map(({ title }) => title));
    assert.equal(titles[0], "the server's own picture");
    assert.equal(new Set(titles).size, 5);
    for (const title of titles.slice(1)) {
      await page.click(`.pictures button[title="${title}"]`);
      await page.locator(`.pictures button[title="${title}"][aria-pressed=true]`).waitFor();
      assert.equal(await page.inputValue("[name=begin]"), title);
    }
    const brightness = async () => (await seen(page)).reduce((sum, value) => sum + value, 0) / 6;
    await page.click(".pictures button[title*='in the snow']");
    await walk(page);
    const snow = await brightness();
    await page.keyboard.press("o");
    await page.click(".pictures button[title*='at night']");
    await walk(page);
    await page.keyboard.down("j");
    for (const begun = page.batches; page.batches < begun + HELD_BATCHES;) await page.waitForTimeout(50);
    await page.keyboard.up("j");
    const night = await brightness();
    assert.ok(night < snow - 40, `${night} at night, ${snow} in the snow`);
    await leave(page);
  });

  test("a picture is dropped, and another is pasted", LIMIT, async () => {
    const page = await open();
    const offered = () => page.locator(".pictures button").count(), before = await offered();
    for (const kind of ["drop", "paste"]) {
      await page.evaluate(async (name) => {
        const canvas = new OffscreenCanvas(64, 48);
        canvas.getContext("2d").fillRect(0, 0, 9, 9);
        const files = new DataTransfer();
        files.items.add(new File([await canvas.convertToBlob()], `${name}.png`, { type: "image/png" }));
        const event = name === "drop" ? new DragEvent(name, { dataTransfer: files }) : new ClipboardEvent(name, { clipboardData: files });
        document.dispatchEvent(event);
      }, kind);
      await page.locator(`.pictures button[title="${kind}.png"][aria-pressed=true]`).waitFor();
    }
    assert.equal(await offered(), before + 2);
    await walk(page);
    await leave(page);
  });

  test("pause, back, another prompt and another picture by the keyboard alone", LIMIT, async () => {
    const page = await open();
    await tabTo(page, "[data-command=go]");
    await page.keyboard.press("Enter");
    await page.locator(".stage[data-seen]").waitFor();
    await page.keyboard.press("Space");
    await told(page, "Paused");
    await page.keyboard.press("Space");
    await page.locator(".notice", { hasText: "Paused" }).waitFor({ state: "hidden" });
    await page.keyboard.press("Backspace");
    await tabTo(page, "[name=prompt]");
    await page.keyboard.press("Control+A");
    await page.keyboard.type("a blue room");
    await page.keyboard.press("Enter");
    await told(page, "Now: a blue room");
    await page.keyboard.down("w");
    await page.keyboard.press("o");
    await page.keyboard.up("w");
    await tabTo(page, ".pictures button:nth-child(2)");
    await page.keyboard.press("Enter");
    await page.locator(".pictures button:nth-child(2)[aria-pressed=true]").waitFor();
    await tabTo(page, "[data-command=go]");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelector(".stage").dataset.state === "walk");
    await page.locator(".stage[data-seen]").waitFor();
    await page.waitForTimeout(1500); // in which it would walk; a world that stands still sends nothing
    assert.deepEqual(await place(page), [0, 0, 0], "W came up while the pictures were shown, and walks on by itself");
    await leave(page);
  });

  test("the bar's controls are in the window, and what they do leaves the walk going", LIMIT, async () => {
    const page = await open(undefined, { script: () => { delete Element.prototype.requestFullscreen; } });
    await walk(page);
    for (const size of [[1440, 900], [776, 500], [740, 360], [721, 600], [360, 740], [320, 568]]) {
      await page.setViewportSize({ width: size[0], height: size[1] });
      assert.deepEqual(await page.evaluate(outside), [], size.join(" x "));
    }
    await page.setViewportSize({ width: 1440, height: 900 });
    await page.focus("[name=refresh]");
    await page.keyboard.press("Space");
    assert.ok(await page.isChecked("[name=refresh]"));
    assert.doesNotMatch(page.sent, /kind\xa5pause/);
    for (const part of ["[data-command=full]", ".bar .refresh", ".menu summary", ".bar [data-command=ask]"]) {
      await page.click(part);
      assert.equal(await page.evaluate(() => document.activeElement.tagName), "CANVAS", part);
    }
    await told(page, "has no full screen");
    const refused = (route) => route.fulfill({ status: 409, body: "no space is left" });
    await page.route("**/walk/state?*", refused);
    await page.click(".menu summary");
    await page.click("[data-save=state]");
    await told(page, "This cannot be saved: no space is left");
    await page.keyboard.down("w");
    for (const begun = page.batches; page.batches < begun + 18;) await page.waitForTimeout(50);
    await page.keyboard.up("w");
    await page.click(".menu summary");
    const [saved] = await Promise.all([page.waitForEvent("download"), page.click("[data-save=path]")]);
    assert.equal(saved.suggestedFilename(), "camera.zip");
    await page.evaluate(() => { // faster than the server answers
      const press = () => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { code: "Backspace", bubbles: true }));
      for (let presses = 0; presses < 3; presses++) press();
    });
    const steps = () => [...page.sent.matchAll(/back\xa7payload(?:\xcc|\xcd\x00)?(.)/gs)].map(([, byte]) => byte.charCodeAt(0));
    while (steps().length < 3) await page.waitForTimeout(50);
    const [first, second, third] = steps();
    assert.ok(first > 0 && second === Math.max(0, first - 8) && third === Math.max(0, second - 8), steps().join());
    await leave(page);
  });

  test("from the pictures back to the walk, and after another picture Pause pauses again", LIMIT, async () => {
    const script = () => {
      window.locked = null;
      Object.defineProperty(Document.prototype, "pointerLockElement", { get: () => window.locked });
      HTMLCanvasElement.prototype.requestPointerLock = function () { window.locked = this; };
      Document.prototype.exitPointerLock = () => { window.locked = null; };
    };
    const page = await open(undefined, { script }), pause = () => page.textContent("[data-command=pause]");
    const paused = (text) => page.locator("[data-command=pause]", { hasText: text }).waitFor({ state: "attached" });
    await walk(page);
    const folder = () => measures(page).then(({ walk: { folder: name } }) => name), before = await folder();
    for (const back of ["Escape", "o", "click"]) {
      await page.click("canvas");
      await page.keyboard.press("o");
      await page.locator(".begin").waitFor();
      assert.equal(await page.evaluate(() => window.locked), null);
      await paused("Go on");
      if (back === "click") await page.click("[data-command=return]"); else await page.keyboard.press(back);
      await page.locator(".begin").waitFor({ state: "hidden" });
      assert.match(await page.textContent(".notice"), /^Paused/);
      await page.keyboard.press("Space");
      await paused("Pause");
    }
    assert.equal(await folder(), before);
    await page.keyboard.press("o");
    await paused("Go on");
    await walk(page);
    assert.equal(await pause(), "Pause");
    await page.keyboard.press("Space");
    await paused("Go on");
    assert.notEqual(await folder(), before);
    await leave(page);
  });

  test("a prompt without a connection is kept and said to be, and a walk that is over is said to be", LIMIT, async () => {
    const script = () => { // a hold on the page's websocket
      window.WebSocket = class extends WebSocket { constructor(...words) { super(...words); window.socket = this; } };
    };
    const page = await open(undefined, { script });
    await walk(page);
    const said = await page.evaluate(() => {
      window.socket.onclose({ code: 1006 });
      const bar = document.querySelector(".bar");
      bar.prompt.value = "a maze at night";
      bar.requestSubmit();
      return document.querySelector(".notice").textContent;
    });
    assert.match(said, /^The prompt is not sent/);
    await told(page, "was not sent. Send it again");
    assert.equal(await page.inputValue(".bar [name=prompt]"), "a maze at night");
    await page.click(".bar [type=submit]");
    await told(page, "Now: a maze at night");
    await page.evaluate(async () => {
      const { pack } = await import("./live/msgpack.mjs");
      window.socket.onmessage({ data: pack({ type: "error", content: "the walk is over: nobody came back" }).buffer });
    });
    await page.locator(".begin .said", { hasText: /^The walk is over\. It is kept in .*walk-\d+\.$/ }).waitFor();
    assert.ok(await page.isHidden("[data-command=return]"));
    assert.deepEqual(page.faults, []);
  });

  test("the picture that was chosen last is walked in, however long it takes to come", LIMIT, async () => {
    const page = await open();
    const picture = async (number) => Buffer.from(await (await fetch(new URL(`example/${number}`, process.env.LIVE_URL))).arrayBuffer());
    const [late, soon] = (await Promise.all([4, 2].map(picture))).map((bytes) => bytes.toString("latin1"));
    const gives = [];
    await page.route(/example.[34]$/, async (route) => { await new Promise((give) => { gives.push(give); }); await route.continue(); });
    const give = async () => { while (!gives.length) await page.waitForTimeout(20); gives.pop()(); };
    const button = (number) => page.locator(".pictures button").nth(number);
    const second = page.locator(".pictures button:nth-child(3)[aria-pressed=true]");
    await button(3).click();
    await button(2).click();
    await second.waitFor();
    const came = page.waitForEvent("requestfinished");
    await give();
    await came;
    await page.waitForTimeout(200); // in which it would be chosen
    assert.ok(await second.isVisible());
    await button(4).click();
    await page.click("[data-command=go]");
    assert.ok(await page.isVisible(".begin"));
    await give();
    while (!page.sent.includes("init")) await page.waitForTimeout(50);
    assert.ok(page.sent.includes(late) && !page.sent.includes(soon));
    await page.locator(".begin").waitFor({ state: "hidden" });
    assert.deepEqual(page.faults, []);
  });

  test("a picture is taken by the camera and walked in, and without one that is said", LIMIT, async () => {
    const page = await open();
    await page.click("[data-command=camera]");
    await page.waitForFunction(() => document.querySelector("video").videoWidth > 0);
    await page.click("[data-command=shoot]");
    await page.locator('.pictures button[title="camera"][aria-pressed=true] img').waitFor();
    const taken = () => {
      const image = document.querySelector('.pictures button[title="camera"] img'), canvas = new OffscreenCanvas(64, 36);
      const context = canvas.getContext("2d"), video = document.querySelector("video");
      context.drawImage(image, 0, 0, 64, 36);
      const colours = new Set(context.getImageData(0, 0, 64, 36).data).size;
      return { width: image.naturalWidth, colours, off: video.hidden && !video.srcObject?.active };
    };
    const { width, colours, off } = await page.evaluate(taken);
    assert.ok(width >= 320 && colours > 4, `${width} ${colours}`);
    assert.ok(off, "the camera is still on");
    await walk(page);
    assert.ok(/first_frame[\xc5\xc6]/.test(page.sent), "the picture was not sent");
    await leave(page);
    const script = () => { navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException("Permission denied")); };
    const without = await open(undefined, { script });
    await without.click("[data-command=camera]");
    await without.locator(".begin .said", { hasText: "No camera can be used (Permission denied)" }).waitFor();
    await without.evaluate(() => Object.defineProperty(navigator, "mediaDevices", { value: undefined }));
    await without.click("[data-command=camera]");
    await without.locator(".begin .said", { hasText: "only to pages on this machine, or by https" }).waitFor();
  });

  test("a file that is no picture is refused where it was dropped", LIMIT, async () => {
    const page = await open();
    await page.setInputFiles("input[type=file]", { name: "a.png", mimeType: "image/png", buffer: Buffer.from("no") });
    await page.locator(".begin .said", { hasText: "cannot be used" }).waitFor();
    const paste = (width, height) => page.evaluate(async (size) => {
      const canvas = new OffscreenCanvas(...size), files = new DataTransfer();
      canvas.getContext("2d");
      files.items.add(new File([await canvas.convertToBlob()], "clear", { type: "image/png" }));
      document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: files }));
    }, [width, height]);
    await paste(30000, 3);
    await page.locator(".begin .said", { hasText: "cannot be used: it is too small or too narrow" }).waitFor();
    await paste(2100, 60);
    await page.locator(".pictures button[title=clear][aria-pressed=true]").waitFor();
    assert.equal(await page.textContent(".begin .said"), "");
    assert.ok(await page.evaluate(async () => {
      const image = document.querySelector(".pictures button[title=clear] img"), canvas = new OffscreenCanvas(1, 1);
      await image.decode();
      canvas.getContext("2d").drawImage(image, 0, 0, 1, 1);
      return canvas.getContext("2d").getImageData(0, 0, 1, 1).data.every((value) => value > 250);
    }), "what is transparent is not white");
    assert.deepEqual(page.faults, []);
    await page.context().close();
  });
});
