// The page of a live walk against a server of the test's own, which makes frames as it is told: what is seen at first, the
// player's lag, the picture that turns at once, phones, and what the page saves.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, afterEach, before, describe, test as node } from "node:test";
import { launch, PATIENCE, withSecondTry } from "./canvas.mjs";
import { serve, Walk } from "./live_mock.mjs";

const LIMIT = { timeout: 2 * PATIENCE };
const PHONE = { hasTouch: true, isMobile: true };
let browser, site, walk;
before(async () => {
  site = await serve();
  browser = await launch("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream");
});
after(async () => { await browser?.close(); site?.close(); });
const tidy = async () => { walk?.close(); await Promise.all(browser.contexts().map((context) => context.close())); };
afterEach(tidy);
const test = (name, limit, body) => node(name, limit, withSecondTry(body, tidy));

async function open({ size = [1000, 640], options = {}, settings = {}, script = null } = {}) {
  const context = await browser.newContext({ viewport: { width: size[0], height: size[1] }, ...options });
  if (script) await context.addInitScript(script);
  context.setDefaultTimeout(PATIENCE);
  const page = Object.assign(await context.newPage(), { faults: [] });
  page.on("pageerror", (error) => page.faults.push(error.message));
  walk = new Walk(settings);
  await walk.attach(page);
  await page.goto(site.address);
  await page.locator(".pictures button[aria-pressed=true]").waitFor();
  return page;
}

const seen = (page) => page.locator(".stage[data-seen]").waitFor();
const begin = async (page) => { await page.click("[data-command=go]"); await seen(page); };
const kinds = (kind) => walk.events.filter((event) => event.kind === kind);
async function happens(what, reason) {
  for (const ends = Date.now() + PATIENCE; Date.now() < ends; await new Promise((resolve) => { setTimeout(resolve, 20); })) if (await what()) return;
  assert.fail(reason);
}
async function saved(page, press) {
  const [download] = await Promise.all([page.waitForEvent("download"), press()]);
  return { name: download.suggestedFilename(), bytes: await readFile(await download.path()) };
}

describe("live page", () => {
  test("the chosen picture is seen at once, another one too, and who holds W walks in", LIMIT, async () => {
    const page = await open();
    const shown = () => page.evaluate(() => {
      const { hidden, naturalWidth, src } = document.querySelector(".preview");
      return !hidden && naturalWidth > 0 ? new URL(src).pathname : "";
    });
    await happens(async () => (await shown()) === "/example/0", "the first picture is not shown");
    assert.match(await page.innerText(".hold"), /Hold\s+W\s+to walk/);
    await page.click(".pictures button:nth-child(2)");
    await happens(async () => (await shown()) === "/example/1", "the other picture is not shown");
    await page.locator("canvas[role=application]").focus();
    await page.keyboard.down("w");
    await seen(page);
    await happens(() => walk.keys.includes("w"), "W is held and does not walk");
    assert.equal(walk.init.prompt, "stripes, turned");
    assert.ok(walk.init.first_frame.length > 1000);
    assert.ok(await page.isHidden(".hold") && await page.isHidden(".preview") && await page.isHidden(".begin"));
    await page.keyboard.up("w");
    await happens(() => walk.keys.length === 0, "W is up and walks on");
    assert.deepEqual(page.faults, []);
  });

  test("a Japanese browser has the page in Japanese, before it is first painted", LIMIT, async () => {
    const script = () => { window.painted = new Promise((resolve) => {
      const isText = ({ name }) => name === "first-contentful-paint";
      new PerformanceObserver((list) => { if (list.getEntries().some(isText)) resolve(list.getEntries().find(isText).startTime); }).observe({ type: "paint", buffered: true });
    }); };
    const page = await open({ options: { locale: "ja-JP" }, script });
    assert.deepEqual(await page.evaluate(() => [document.documentElement.lang, document.title]), ["ja", "LingBot-World ライブ"]);
    assert.match(await page.innerText(".hold"), /^W\s*を押し続けて歩く/);
    assert.equal(await page.getAttribute("textarea", "placeholder"), "画像に映っている内容");
    const [painted, came] = await page.evaluate(async () => [await window.painted, performance.getEntriesByName(new URL("live/words.ja.json", location.href).href)[0].responseEnd]);
    assert.ok(painted >= came, `painted after ${painted} ms, its texts came after ${came} ms`);
    assert.deepEqual(page.faults, []);
  });

  test("a page whose scripts are refused says what to do, in each language", LIMIT, async () => {
    for (const locale of ["en-US", "ja-JP"]) {
      const page = await (await browser.newContext({ locale })).newPage();
      await page.route("**/live/start.mjs", (route) => route.fulfill({ status: 403 }));
      await page.goto(site.address);
      await page.locator(".said", { hasText: `start live with --allow_origin ${new URL(site.address).origin}` }).waitFor();
    }
  });

  test("a link to a walk that is no longer kept says so", LIMIT, async () => {
    const page = await (await browser.newContext()).newPage(), answers = { server_info: { walks: true }, walks: [] };
    for (const [name, json] of Object.entries(answers)) await page.route(`**/${name}?*`, (route) => route.fulfill({ json }));
    await page.goto(`${site.address}?replay=walk-99`);
    await page.locator(".said", { hasText: "walk-99 is not among the walks" }).waitFor();
  });

  test("a prompt of a page leaves the picture to be seen", LIMIT, async () => {
    const page = await open({ size: [390, 844] });
    await begin(page);
    walk.status("prompt", { text: "a long way ".repeat(600) });
    await page.locator(".notice", { hasText: "Now: a long way" }).waitFor();
    assert.ok((await page.locator(".notice").boundingBox()).height < 160);
  });

  test("a maze's crate is announced, painted, shown on the map, and found once", LIMIT, async () => {
    const map = { room: 4.8, boxes: [[0, 0, 1.7, 0.12, 2], [0, 0, 0.12, 1.7, 2]], goal: [2.4, 2.4, 0.26, 0.26, 0.52], at: [2.4, -0.9, 0.6, 0], found: false };
    const page = await open({ settings: { extra: { map } } });
    assert.ok(await page.isHidden(".hold .goal"));
    await begin(page);
    assert.match(await page.innerText(".hold"), /golden crate.*map\s+M\s+shows/s);
    const golden = (canvas) => page.evaluate((name) => {
      const { width, height } = document.querySelector(name), { data } = document.querySelector(name).getContext("2d").getImageData(0, 0, width, height);
      let count = 0;
      for (let at = 0; at < data.length; at += 4) count += data[at] > 160 && data[at + 1] > 100 && data[at + 1] < data[at] && data[at + 2] < 95;
      return count;
    }, canvas);
    await happens(async () => (await golden("canvas[tabindex]")) > 40, "no golden crate is painted");
    await page.keyboard.press("m");
    await happens(async () => (await golden(".map")) > 10, "the map has no crate");
    walk.status("found", { seconds: 34.2 });
    await happens(async () => /found the golden crate in 34 seconds/.test(await page.innerText(".notice")), "nothing is said");
    await happens(async () => (await golden("canvas[tabindex]")) === 0 && (await golden(".map")) === 0, "the crate stays");
    assert.deepEqual(page.faults, []);
  });

  test("a picture of one's own takes no other picture's words", LIMIT, async () => {
    const page = await open();
    assert.equal(await page.inputValue("[name=begin]"), "a striped room");
    const drop = () => page.evaluate(async () => {
      const canvas = new OffscreenCanvas(64, 48), files = new DataTransfer();
      canvas.getContext("2d").fillRect(0, 0, 9, 9);
      files.items.add(new File([await canvas.convertToBlob()], "mine.png", { type: "image/png" }));
      document.dispatchEvent(new DragEvent("drop", { dataTransfer: files }));
    });
    await drop();
    await page.locator(".pictures button[title='mine.png'][aria-pressed=true]").waitFor();
    assert.equal(await page.inputValue("[name=begin]"), "");
    await page.fill("[name=begin]", "a kitchen");
    await drop();
    await page.locator(".pictures button[title='mine.png']").nth(1).waitFor();
    assert.equal(await page.inputValue("[name=begin]"), "a kitchen", "what was typed is kept");
    await page.fill("[name=begin]", "");
    await begin(page);
    assert.doesNotMatch(walk.init.prompt, /striped/);
    assert.ok(walk.init.prompt.trim(), "a server takes an empty prompt for its own picture's");
  });

  test("four seconds without animation frames, a stalled network, a hidden page: two seconds later the lag is as before", LIMIT, async () => {
    const script = () => { // holds animation frames back
      const request = window.requestAnimationFrame.bind(window), held = [];
      window.requestAnimationFrame = (draw) => request((now) => { if (window.stopped) held.push(draw); else draw(now); });
      window.stop = (stopped) => { window.stopped = stopped; if (!stopped) held.splice(0).forEach((draw) => window.requestAnimationFrame(draw)); };
    };
    const page = await open({ script });
    await begin(page);
    await page.evaluate(async () => { // the age of frames: milliseconds from their coming to their being seen
      const { Buffer } = await import("./live/buffer.mjs"), { push, take } = Buffer.prototype;
      window.ages = [];
      Buffer.prototype.push = function (frames, now) { frames.forEach((frame) => { frame.came = now; }); push.call(this, frames, now); };
      Buffer.prototype.take = function (now) { const frame = take.call(this, now); if (frame?.came) window.ages.push(now - frame.came); return frame; };
    });
    const age = async () => {
      await page.evaluate(() => { window.ages = []; });
      await happens(() => page.evaluate(() => window.ages.length >= 16), "no frames are seen");
      return page.evaluate(() => window.ages.sort((a, b) => a - b)[8]);
    };
    await page.waitForTimeout(2000);
    const before = await age();
    const told = [];
    for (const [what, fill] of Object.entries({
      "no animation frames": async () => { await page.evaluate(() => window.stop(true)); await page.waitForTimeout(4000); await page.evaluate(() => window.stop(false)); },
      "a stalled network": async () => { walk.stall(true); await page.waitForTimeout(1500); walk.stall(false); },
      "a busy page": () => page.evaluate(() => { for (const ends = performance.now() + 900; performance.now() < ends;); }),
    })) {
      await fill();
      await page.waitForTimeout(2000);
      let now = await age();
      for (let tries = 0; now >= before + 100 && tries < 5; tries++) now = await age(); // a busy machine is late by itself
      told.push(`${what} ${Math.round(now)}`);
      assert.ok(now < before + 100, `${what}: ${before} ms before, ${now} after`);
    }
    console.log(`# frames are seen ${Math.round(before)} ms after they come; after ${told.join(", ")} ms`);
    assert.deepEqual(page.faults, []);
  });

  test("the picture turns in the next display frame after the mouse, and never jumps when frames come", LIMIT, async () => {
    const script = () => {
      Object.defineProperty(Document.prototype, "pointerLockElement", { get: () => document.querySelector("canvas") });
    };
    const page = await open({ script });
    await begin(page);
    await page.evaluate(async () => { // what is seen, in each display frame: the frame's own direction and the picture's turn
      const { Turn } = await import("./live/turn.mjs"), { ease } = Turn.prototype;
      window.seen = [];
      Turn.prototype.ease = function (...words) {
        ease.apply(this, words);
        if (this.camera) window.seen.push({ yaw: this.camera[0] + this.offset[0], pitch: this.camera[1] + this.offset[1], offset: this.offset[0], at: performance.now(), elapsed: words[1] });
      };
      window.move = (x, y) => document.dispatchEvent(new MouseEvent("mousemove", { movementX: x, movementY: y }));
    });
    await page.waitForTimeout(1500);
    const turned = await page.evaluate(async () => {
      await new Promise(requestAnimationFrame);
      const at = performance.now(), { yaw } = window.seen.at(-1);
      window.move(100, 0); // ten degrees
      while (Math.abs(window.seen.at(-1).yaw - yaw) < 9) await new Promise(requestAnimationFrame);
      return window.seen.at(-1).at - at;
    });
    const shown = () => page.evaluate(() => {
      const frame = document.querySelector(".frame"), costs = ({ filter, transform }) => filter !== "none" || transform !== "none";
      return { turned: !frame.querySelector(".turned").hidden, costs: [...frame.children].some((each) => costs(getComputedStyle(each))) };
    });
    await happens(async () => (await shown()).turned, "the picture is not turned");
    assert.equal((await shown()).costs, false, "without a GPU a filter or a transform of the whole picture takes the walk's time");
    await page.evaluate(() => { window.seen = []; });
    await happens(() => walk.yaw === 10, "the server does not turn");
    const rest = () => page.evaluate(() => Math.max(...(window.seen.at(-1)?.at ?? 0) - (window.seen[0]?.at ?? 0) > 1500 ? window.seen.slice(-3).map(({ offset }) => Math.abs(offset)) : [1]));
    await happens(async () => await rest() < 0.2, "the picture stays turned");
    const jumps = () => page.evaluate(() => window.seen.slice(1).map(({ yaw, pitch }, at) => Math.hypot(yaw - window.seen[at].yaw, pitch - window.seen[at].pitch)));
    assert.ok(Math.max(...await jumps()) < 2, `${Math.max(...await jumps())} degrees`);
    const { yaw } = await page.evaluate(() => window.seen.at(-1));
    assert.ok(Math.abs(yaw - 10) < 0.3, yaw);
    await page.evaluate(() => { window.seen = []; });
    await page.keyboard.down("l");
    await page.waitForTimeout(1500);
    await page.keyboard.up("l");
    await happens(async () => await rest() < 0.2, "the picture stays turned");
    const held = await page.evaluate(() => window.seen.slice(1).map(({ yaw: now, elapsed, offset }, index) => ({ turn: now - window.seen[index].yaw, elapsed, offset })));
    const free = held.filter(({ offset }) => Math.abs(offset) < 19); // a slow machine's frames come after the furthest turn
    const over = free.map(({ turn, elapsed }) => Math.abs(turn) - (32 * Math.min(100, elapsed)) / 1000); // what a held key turns
    assert.ok(Math.max(...over) < 2, `${Math.max(...over)} degrees beyond what was asked for`);
    console.log(`# turned after ${Math.round(turned)} ms; at most ${Math.max(...await jumps(), 0).toFixed(2)} degrees from one display frame to the next`);
    await page.keyboard.press("t");
    await happens(async () => !(await shown()).turned, "the switch is off");
    await page.evaluate(() => window.move(100, 0));
    await page.waitForTimeout(100);
    assert.equal((await shown()).turned, false, "the switch is off");
    assert.deepEqual(page.faults, []);
  });

  test("a right stick that is held keeps turning, and the picture has the room of a phone", LIMIT, async () => {
    for (const size of [[390, 844], [844, 390]]) {
      const events = ["rain", "night", "a storm over the sea", "fireworks", "birds"].map((name) => ({ name, text: name }));
      const page = await open({ size, options: PHONE, settings: { extra: { events } } });
      await begin(page);
      const [width, height] = size, { frame, stage, bar, stick } = await page.evaluate(() => {
        const box = (selector) => document.querySelector(selector).getBoundingClientRect();
        return { frame: box(".frame"), stage: box(".stage"), bar: box(".bar"), stick: box(".stick.look") };
      });
      assert.ok(Math.abs(frame.width - width) < 1 || Math.abs(frame.height - height) < 1, `${frame.width} x ${frame.height}`);
      assert.equal(Math.round(stage.bottom), width < height ? Math.round(bar.top) : height);
      assert.ok(stick.bottom < (width < height ? bar.top : height), "the stick lies under the bar");
      const session = await page.context().newCDPSession(page);
      const touch = (type, x, y) => session.send("Input.dispatchTouchEvent", { type, touchPoints: type === "touchEnd" ? [] : [{ x, y }] });
      await touch("touchStart", width - 80, height / 2);
      await touch("touchMove", width - 30, height / 2);
      await happens(() => walk.stick[2] > 0.9, "the right stick does not turn");
      const { yaw } = walk;
      await happens(() => walk.yaw > yaw + 40, "a stick that is held stops turning");
      await touch("touchEnd");
      await happens(() => walk.stick[2] === 0, "the stick is let go of and turns on");
      assert.ok(kinds("look").length === 0);
      await page.locator(".bar[data-quiet]").waitFor({ state: "attached" });
      const opacity = await page.evaluate(() => new Promise((tell) => { setTimeout(() => tell(getComputedStyle(document.querySelector(".bar")).opacity), 600); }));
      assert.equal(opacity, width < height ? "1" : "0", "it fades where it lies over the picture");
      await happens(async () => { // it fades again
        await page.touchscreen.tap(width / 2, height / 3);
        return await page.locator(".bar:not([data-quiet])").count();
      }, "a tap does not show the controls");
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
      assert.deepEqual(page.faults, []);
      walk.close();
      await page.context().close();
    }
  });

  test("R asks, R again begins anew, and another key goes on", LIMIT, async () => {
    const page = await open();
    await begin(page);
    await page.keyboard.press("r");
    await page.locator(".ask").waitFor();
    await page.keyboard.press("w");
    await page.locator(".ask").waitFor({ state: "hidden" });
    await page.keyboard.press("r");
    await page.keyboard.press("Escape");
    await page.locator(".ask").waitFor({ state: "hidden" });
    await page.focus(".bar [data-command=ask]");
    await page.keyboard.press("Enter");
    const focused = () => page.evaluate(() => document.activeElement.dataset.command ?? document.activeElement.tagName);
    assert.equal(await focused(), "again");
    await page.keyboard.press("w");
    assert.deepEqual([await focused(), kinds("restart").length], ["CANVAS", 0]);
    await page.keyboard.press("r");
    await page.keyboard.press("r");
    await happens(() => kinds("restart").length === 1, "R twice does not begin anew");
    assert.ok(await page.isHidden(".ask"));
  });

  test("Restart asks as R does, on a phone upright and on its side", LIMIT, async () => {
    const page = await open({ size: [390, 844], options: PHONE });
    await begin(page);
    for (const [times, size] of [[1, [390, 844]], [2, [844, 390]]]) {
      await page.setViewportSize({ width: size[0], height: size[1] });
      await page.touchscreen.tap(size[0] / 2, 60); // the controls are there
      await page.tap(".bar [data-command=ask]");
      await page.tap(".ask [data-command=stay]");
      assert.equal(kinds("restart").length, times - 1);
      await page.tap(".bar [data-command=ask]");
      await page.tap(".ask [data-command=again]");
      await happens(() => kinds("restart").length === times, "the answer does not begin anew");
      assert.ok(await page.isHidden(".ask"));
    }
    assert.deepEqual(page.faults, []);
  });

  test("controls fade while one walks, and stay with the focus, in a pause and over the pointer", LIMIT, async () => {
    const page = await open(), quiet = page.locator(".bar[data-quiet]");
    await begin(page);
    await quiet.waitFor({ state: "attached" });
    await happens(async () => { // they fade again
      await page.mouse.move(300, 200);
      await page.mouse.move(320, 220);
      return await quiet.count() === 0;
    }, "the mouse does not show the controls");
    await quiet.waitFor({ state: "attached" });
    await page.focus(".bar [name=prompt]");
    await page.waitForTimeout(3500);
    assert.equal(await quiet.count(), 0);
    await page.focus("canvas");
    await quiet.waitFor({ state: "attached" });
    await page.keyboard.press("Space");
    await page.locator("[data-command=pause]", { hasText: "Go on" }).waitFor();
    await page.waitForTimeout(3500);
    assert.equal(await quiet.count(), 0);
  });

  test("figures, map and keys are shown by keys, and kept; paused frames are none a second", LIMIT, async () => {
    const page = await open();
    await begin(page);
    assert.ok(await page.isHidden(".figures") && await page.isHidden(".map"));
    await page.keyboard.press("g");
    await page.keyboard.press("m");
    assert.ok(await page.isVisible(".figures") && await page.isVisible(".map"));
    await page.keyboard.down("w");
    await happens(() => walk.z > 1, "W does not walk");
    await page.keyboard.up("w");
    const inked = await page.evaluate(() => {
      const map = document.querySelector(".map"), { data } = map.getContext("2d").getImageData(0, 0, map.width, map.height);
      return data.filter((value, at) => at % 4 === 3 && value > 0).length;
    });
    assert.ok(inked > 200, `${inked} pixels of a way`);
    await page.locator("[data-figure=parts]", { hasText: /waited 60, made \d+ ms/ }).waitFor();
    await page.keyboard.press("?");
    await page.locator(".help", { hasText: "two seconds back" }).waitFor();
    await page.keyboard.press("Escape");
    await page.locator(".help").waitFor({ state: "hidden" });
    await page.keyboard.press("Space");
    await page.locator("[data-figure=rate]", { hasText: /^0\.0$/ }).waitFor();
    walk.paused = false;
    await page.reload();
    await page.locator(".pictures button[aria-pressed=true]").waitFor();
    await begin(page);
    assert.ok(await page.isVisible(".figures") && await page.isVisible(".map"));
    assert.deepEqual(page.faults, []);
  });

  test("a photo, and a clip that plays", LIMIT, async () => {
    const page = await open();
    await begin(page);
    await page.waitForTimeout(3000);
    const photo = await saved(page, () => page.keyboard.press("p"));
    assert.equal(photo.name, "walk.png");
    assert.deepEqual([photo.bytes.readUInt32BE(16), photo.bytes.readUInt32BE(20)], [128, 72]);
    const clip = await saved(page, () => page.keyboard.press("c"));
    assert.match(clip.name, /^walk\.(mp4|webm)$/);
    const { width, seconds } = await page.evaluate(async (bytes) => {
      const video = Object.assign(document.createElement("video"), { muted: true, src: URL.createObjectURL(new Blob([new Uint8Array(bytes)])) });
      await new Promise((resolve, reject) => { video.onloadedmetadata = resolve; video.onerror = () => reject(new Error("it cannot be played")); });
      video.currentTime = 1e6; // a recording knows its length when its end was seen
      await new Promise((resolve) => { video.onseeked = resolve; });
      return { width: video.videoWidth, seconds: video.currentTime };
    }, [...clip.bytes]);
    assert.equal(width, 128);
    assert.ok(seconds > 1, `${seconds} s`);
    assert.deepEqual(page.faults, []);
  });

  test("a menu closes by Escape, by a click elsewhere, and when something is chosen", LIMIT, async () => {
    const page = await open(), menu = page.locator(".menu.save");
    await begin(page);
    for (const close of [() => page.keyboard.press("Escape"), () => page.click(".bar [name=prompt]"), () => menu.locator("[data-command=photo]").click()]) {
      await menu.locator("summary").click();
      await menu.locator("[data-command=photo]").waitFor();
      await close();
      await menu.locator("[data-command=photo]").waitFor({ state: "hidden" });
    }
  });

  test("all is reached by the keyboard, at 200 and at 400 percent too", LIMIT, async () => {
    for (const size of [[1280, 720], [640, 360], [320, 256]]) {
      const page = await open({ size });
      const order = async (count) => {
        const reached = [];
        for (let presses = 0; presses < count; presses++) {
          await page.keyboard.press("Tab");
          reached.push(await page.evaluate(() => {
            const { activeElement: element } = document, { left, top, right, bottom } = element.getBoundingClientRect();
            const within = left >= -1 && right <= innerWidth + 1 && top >= -1 && bottom <= innerHeight + 1;
            return `${element.dataset.command ?? element.name ?? element.tagName}${within || element.tagName === "CANVAS" ? "" : " outside"}`;
          }));
        }
        return reached;
      };
      await page.locator("canvas[role=application]").focus();
      const first = await order(8);
      assert.ok(first.includes("begin") && first.includes("go") && first.includes("camera"), first.join());
      await begin(page);
      const reached = [];
      await page.focus("canvas");
      reached.push(...await order(11));
      for (const wanted of ["pause", "back", "ask", "picture", "prompt", "refresh", "full", "leave"]) assert.ok(reached.includes(wanted), `${size}: ${wanted} of ${reached.join()}`);
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), size.join());
      walk.close();
      await page.context().close();
    }
  });

  test("the camera at the back is asked for, with a shutter, and can be left", LIMIT, async () => {
    const script = () => {
      const get = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
      navigator.mediaDevices.getUserMedia = (wishes) => { window.wishes = wishes; return get(wishes); };
    };
    const page = await open({ script });
    await page.click("[data-command=camera]");
    await page.locator("[data-command=shoot]").waitFor();
    assert.equal(await page.evaluate(() => window.wishes.video.facingMode.ideal), "environment");
    await page.click("[data-command=no-camera]");
    await page.locator("[data-command=shoot]").waitFor({ state: "hidden" });
    assert.equal(await page.locator(".pictures button[title=camera]").count(), 0);
    await page.click("[data-command=camera]");
    await page.waitForFunction(() => document.querySelector("video").videoWidth > 0);
    await page.click("[data-command=shoot]");
    await page.locator(".pictures button[title=camera][aria-pressed=true]").waitFor();
    assert.ok(await page.evaluate(() => document.querySelector("video").hidden));
    assert.deepEqual(page.faults, []);
  });

  test("at once is seen to work, and the drift of a world is told", LIMIT, async () => {
    const page = await open();
    await begin(page);
    await page.check("[name=refresh]");
    await page.fill(".bar [name=prompt]", "at night");
    walk.prompt = "";
    await page.keyboard.press("Enter");
    await page.locator(".notice", { hasText: /^(Now: at night|.*Recomputing)/ }).waitFor();
    assert.deepEqual(kinds("prompt").at(-1).payload, { text: "at night", refresh: true });
    walk.status("drift", { reason: "the video is degrading: R restarts from the image" });
    await page.locator(".notice", { hasText: "degrading" }).waitFor();
  });
});
