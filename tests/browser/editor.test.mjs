// Making a path with the editor in a real browser, by mouse, keyboard and touch.

import assert from "node:assert/strict";
import { settle } from "./canvas.mjs";
import { addEditorNode, drag, EDITOR, editorInBothRenderers, eventually, graphState, middle, moveEnd, near, playhead,
  playRate, pointIn, savedState, setText, shown } from "./editor.mjs";

const reaches = (editor, frame) => eventually(async () => assert.ok(await playhead(editor) >= frame));

/** The views that are drawn anew while something is done. What was done before is let come to rest first. */
async function drawnViews(page, act) {
  await page.evaluate(() => {
    const { prototype } = CanvasRenderingContext2D, { clearRect } = prototype, views = new Set();
    prototype.clearRect = function (...box) {
      if (this.canvas.dataset.view) views.add(this.canvas.dataset.view);
      return clearRect.apply(this, box);
    };
    window.forgetDrawing = () => {
      const some = views.size > 0;
      views.clear();
      return some;
    };
    window.endDrawing = () => {
      prototype.clearRect = clearRect;
      return [...views];
    };
  });
  do await settle(page); while (await page.evaluate(() => window.forgetDrawing()));
  await act();
  await settle(page);
  return page.evaluate(() => window.endDrawing());
}

editorInBothRenderers((it) => {
  it.both("drags a keyframe in the top and side views without moving the node", async (page, editor) => {
    const before_ = await graphState(page);
    await moveEnd(page, editor);
    near((await savedState(page)).keyframes[1].position, [0.5, 0, 2], 0.03);
    await drag(page, await pointIn(editor, "side", [0, 0, 0]), await pointIn(editor, "side", [0, -0.5, 0.5]));
    near((await savedState(page)).keyframes[0].position, [0, -0.5, 0.5], 0.03);
    assert.deepEqual(await graphState(page), before_);
  });

  it("turns the camera by its handle", async (page, editor) => {
    await drag(page, await pointIn(editor, "top", [0, 0, 0.35]), await pointIn(editor, "top", [1, 0, 0]));
    const { quaternion } = (await savedState(page)).keyframes[0];
    near(quaternion, [0, Math.SQRT1_2, 0, Math.SQRT1_2], 0.02);
  });

  it("snaps to the grid when asked", async (page, editor) => {
    await editor.getByRole("button", { name: "Snap to the grid" }).click();
    await moveEnd(page, editor, 0.27);
    const [x] = (await savedState(page)).keyframes[1].position;
    assert.ok(x > 0.1 && Math.abs(x * 20 - Math.round(x * 20)) < 1e-6, `${x}`);
  });

  it("undoes and redoes its own edits, not the graph's", async (page, editor) => {
    const start = await savedState(page);
    await moveEnd(page, editor);
    const moved = await savedState(page);
    await page.keyboard.press("Control+z");
    await settle(page);
    assert.deepEqual(await savedState(page), start);
    assert.equal((await graphState(page)).count, 1);
    await page.keyboard.press("Control+Shift+z");
    await settle(page);
    assert.deepEqual(await savedState(page), moved);
    await editor.getByRole("button", { name: "Undo" }).click();
    await page.keyboard.press("Control+z");
    await settle(page);
    assert.deepEqual(await savedState(page), start);
    assert.equal((await graphState(page)).count, 1);
  });

  it("orbits and zooms the 3D view and leaves path and canvas alone", async (page, editor) => {
    const [start, graph] = [await savedState(page), await graphState(page)], world = editor.locator("[data-view=world]");
    const picture = () => world.evaluate((canvas) => canvas.toDataURL()), [x, y] = await middle(world), first = await picture();
    await page.mouse.move(x + 150, y + 60);
    await page.mouse.down();
    await settle(page);
    assert.deepEqual(await drawnViews(page, () => page.mouse.move(x + 60, y + 20, { steps: 6 })), ["world"]); // no other
    await page.mouse.up();
    await settle(page);
    const turned = await picture();
    assert.notEqual(turned, first);
    await page.mouse.wheel(0, 300);
    await settle(page);
    assert.notEqual(await picture(), turned);
    assert.deepEqual([await savedState(page), await graphState(page)], [start, graph]);
  });

  it("scrubs and retimes on the time line, by mouse and keys", async (page, editor) => {
    const line = await editor.locator("[data-view=time]").boundingBox(), readout = editor.locator("output");
    await page.mouse.click(line.x + line.width / 2, line.y + 8);
    await settle(page);
    assert.equal(await readout.textContent(), "40 / 80");
    for (const [key, expected] of [["ArrowRight", 41], ["Shift+ArrowRight", 51], ["Home", 0], ["PageDown", 80]]) {
      await page.keyboard.press(key);
      await settle(page);
      assert.equal(await readout.textContent(), `${expected} / 80`);
    }
    assert.equal(await editor.locator("[data-view=time]").getAttribute("aria-valuenow"), "80");
    await drag(page, [line.x + line.width - 11, line.y + line.height - 11], [line.x + line.width / 2, line.y + line.height - 11]);
    assert.deepEqual((await savedState(page)).keyframes.map((key) => key.frame), [0, 40]);
  });

  it("adds, duplicates and deletes keyframes by keyboard", async (page, editor) => {
    await editor.focus();
    const frames = async () => (await savedState(page)).keyframes.map((key) => key.frame);
    for (let i = 0; i < 2; i += 1) await page.keyboard.press("Shift+ArrowRight");
    await page.keyboard.press("Enter");
    assert.deepEqual(await frames(), [0, 20, 80]);
    await page.keyboard.press("Control+d");
    assert.deepEqual(await frames(), [0, 20, 28, 80]);
    await page.keyboard.press("Delete");
    assert.deepEqual(await frames(), [0, 20, 80]);
    await editor.locator("[data-view=top]").focus();
    await page.keyboard.press("ArrowLeft");
    assert.equal((await savedState(page)).keyframes.length, 4);
    assert.equal((await graphState(page)).count, 1);
  });

  it("types numbers and choices into fields", async (page, editor) => {
    await editor.getByLabel("Yaw").fill("45");
    await editor.getByLabel("Yaw").press("Enter");
    await editor.getByLabel("Length in frames").fill("161");
    await editor.getByLabel("Length in frames").press("Enter");
    await editor.getByLabel("Easing").selectOption("ease_in_out");
    await settle(page);
    const state = await savedState(page);
    near(state.keyframes[0].quaternion, [0, Math.sin(Math.PI / 8), 0, Math.cos(Math.PI / 8)], 1e-5);
    assert.deepEqual([state.frames, state.ease, state.keyframes[1].frame], [161, "ease_in_out", 160]);
  });

  it("records a flight by held keys", async (page, editor) => {
    await editor.focus();
    await page.keyboard.press("r");
    await page.keyboard.down("w");
    await reaches(editor, 14);
    await page.keyboard.down("l");
    await reaches(editor, 28);
    await page.keyboard.up("l");
    await page.keyboard.up("w");
    await page.keyboard.press("Escape");
    await settle(page);
    const { keyframes } = await savedState(page), flown = keyframes.filter((key) => key.frame < 80);
    assert.ok(flown.length >= 3 && flown.length < 20, `${flown.length} keyframes`);
    const end = flown.at(-1);
    assert.ok(end.frame >= 28, `${end.frame} frames`);
    assert.ok(end.position[2] > 0.7 && end.position[0] > 0.05, `${end.position}`);
    assert.ok(end.quaternion[1] > 0.1 && Math.abs(end.position[1]) < 1e-6);
    assert.equal((await graphState(page)).count, 1);
    await page.keyboard.press("Control+z");
    assert.equal((await savedState(page)).keyframes.length, 2);
  });

  it("looks around with the mouse in flight, and Enter keeps the view", async (page, editor) => {
    await editor.focus();
    await page.keyboard.press("f");
    await settle(page);
    const [x, y] = await middle(editor.locator("[data-view=world]"));
    await drag(page, [x, y], [x + 120, y]);
    await eventually(async () => assert.ok(await shown(editor, "Yaw") > 12));
    await page.keyboard.press("Enter");
    await page.keyboard.press("Escape");
    assert.ok((await savedState(page)).keyframes[0].quaternion[1] > 0.1);
  });

  it("loops: there and back again", async (page, editor) => {
    await editor.getByRole("button", { name: "Loop" }).click();
    const { loop, keyframes } = await savedState(page);
    assert.deepEqual([loop, keyframes.map((key) => [key.frame, key.position[2]])], [true, [[0, 0], [40, 2]]]);
  });

  it("plays", async (page, editor) => {
    const rate = playRate(editor, 32);
    await editor.getByRole("button", { name: "Play", exact: true }).click();
    assert.ok(await rate > 8 && await rate < 20, `${await rate} frames a second`);
    await page.keyboard.press(" ");
    assert.equal((await graphState(page)).count, 1);
  });

  it("copies and pastes JSON, by keys and in its panel", async (page, editor) => {
    await moveEnd(page, editor);
    const moved = await savedState(page);
    await page.keyboard.press("Control+c");
    assert.deepEqual(JSON.parse(await page.evaluate(() => navigator.clipboard.readText())), moved);
    const second = await addEditorNode(page, [600, 80]);
    await second.focus();
    await page.keyboard.press("Control+v");
    await settle(page);
    assert.deepEqual(await savedState(page, 1), moved);
    await second.getByRole("button", { name: "Copy or paste JSON" }).click();
    await second.locator("textarea").fill('{"version": 7}');
    await second.getByRole("button", { name: "Apply" }).click();
    assert.match(await second.locator(".lbw-status").textContent(), /version is 7/);
    assert.deepEqual(await savedState(page, 1), moved);
    await second.locator("textarea").fill(JSON.stringify({ ...moved, fps: 24 }));
    await second.getByRole("button", { name: "Apply" }).click();
    assert.deepEqual([(await savedState(page, 1)).fps, (await savedState(page, 0)).fps, (await graphState(page)).count], [24, 16, 2]);
  });

  it("keeps a document it cannot read and says so", async (page, editor) => {
    const future = '{"version": 2, "keyframes": "elsewhere"}';
    await setText(page, future);
    assert.match(await editor.locator(".lbw-status").textContent(), /version is 2/);
    assert.equal((await savedState(page)).version, 2);
  });

  it.both("shows the connected picture on the card, and goes with the node", async (page, editor) => {
    await page.evaluate(() => {
      const load = window.LiteGraph.createNode("LoadImage");
      window.app.graph.add(load);
      load.pos = [700, 80];
      const target = window.app.graph.nodes[0];
      load.connect(0, target, target.inputs.findIndex((input) => input.type === "IMAGE"));
    });
    await editor.locator(".lbw-card img").waitFor();
    await page.evaluate(() => window.app.graph.remove(window.app.graph.nodes[0]));
    await settle(page);
    assert.equal(await page.locator(EDITOR).count(), 0);
  });

  it.both("leaves the drawing of a new preview node room to be read, and a saved size alone", async (page) => {
    const widths = await page.evaluate(() => {
      const add = () => {
        const node = window.LiteGraph.createNode("LingBotWorldCameraPreview");
        window.app.graph.add(node);
        return node;
      };
      const fresh = add(), saved = add();
      saved.configure({ ...saved.serialize(), size: [450, 500] });
      return [fresh.size[0], saved.size[0]];
    });
    assert.deepEqual(widths, [680, 450]);
  });

  it.both("works by touch: drag a keyframe, pinch the 3D view, fly by pads", async (page, editor) => {
    const touch = await page.context().newCDPSession(page);
    const send = (type, ...points) => touch.send("Input.dispatchTouchEvent", { type, touchPoints: points.map(([x, y], id) => ({ x, y, id })) });
    const [from, to] = [await pointIn(editor, "top", [0, 0, 2]), await pointIn(editor, "top", [-0.4, 0, 2])];
    await send("touchStart", from);
    for (const part of [0.3, 0.7, 1]) await send("touchMove", from.map((value, i) => value + (to[i] - value) * part));
    await send("touchEnd");
    near((await savedState(page)).keyframes[1].position, [-0.4, 0, 2], 0.05);
    const [x, y] = await middle(editor.locator("[data-view=world]")), card = editor.locator(".lbw-card"), { scale } = await graphState(page);
    const width = async () => (await card.boundingBox()).width, narrow = await width();
    await send("touchStart", [x - 30, y], [x + 30, y]);
    await send("touchMove", [x - 60, y], [x + 60, y]);
    await send("touchEnd");
    await settle(page);
    assert.ok(await width() > narrow * 1.2, "the pinch did not zoom");
    assert.equal((await graphState(page)).scale, scale);
    await editor.focus();
    await page.keyboard.press("End"); // a finger of the pinch may have met another camera
    await editor.getByRole("button", { name: "Fly", exact: true }).tap();
    const pad = await middle(editor.locator("[data-hold=w]"));
    await send("touchStart", pad);
    await eventually(async () => assert.ok(await shown(editor, "Position z: forward") > 2.25)); // on from the last frame
    await send("touchEnd");
    await editor.getByRole("button", { name: "Set a keyframe" }).tap();
    await settle(page);
    assert.ok((await savedState(page)).keyframes.some((key) => key.frame === 80 && key.position[2] > 2.2));
  });

  it("has a name for everything that takes the focus", async (page, editor) => {
    const nameless = await editor.evaluate((root) => [...root.querySelectorAll("button, input, select, textarea, canvas")]
      .filter((control) => !control.getAttribute("aria-label") && !control.textContent.trim()).map((control) => control.outerHTML));
    assert.deepEqual(nameless, []);
  });
});
