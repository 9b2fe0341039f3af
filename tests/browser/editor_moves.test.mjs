// What people look for: reset, presets and their own, easing between keyframes, playback speed, a hint, the right picture.

import assert from "node:assert/strict";
import { settle } from "./canvas.mjs";
import { addEditorNode, editorInBothRenderers, eventually, moveEnd, near, playRate, savedState } from "./editor.mjs";

const status = (editor) => editor.locator(".lbw-status").textContent();
const aspect = (editor) => editor.evaluate((root) => Number(root.style.getPropertyValue("--lbw-aspect")));
const picture = (editor) => editor.locator(".lbw-card img").getAttribute("src");

/** Adds a node and connects its image output to the editor's input; returns its id. `values` set its fields by name. */
const addBefore = (page, type, values, target = 0) => page.evaluate(([kind, fields, index]) => {
  const { graph } = window.app, after = graph.nodes[index], node = window.LiteGraph.createNode(kind);
  graph.add(node);
  node.pos = [700 + 300 * index, 80];
  for (const [name, value] of Object.entries(fields)) node.widgets.find((widget) => widget.name === name).value = value;
  node.connect(0, after, after.inputs.findIndex((input) => input.type === "IMAGE"));
  return node.id;
}, [type, values, target]);

editorInBothRenderers((it) => {
  it("resets to the path of a new node, which can be undone", async (page, editor) => {
    const start = await savedState(page);
    await moveEnd(page, editor);
    const moved = await savedState(page);
    await editor.getByRole("button", { name: "Reset:" }).click();
    assert.deepEqual(await savedState(page), start);
    await page.keyboard.press("Control+z");
    assert.deepEqual(await savedState(page), moved);
  });

  it("uses a preset move, as long as the video is", async (page, editor) => {
    await editor.getByLabel("Length in frames").fill("41");
    await editor.getByLabel("Length in frames").press("Enter");
    await editor.getByRole("button", { name: "Preset moves" }).click();
    await editor.getByRole("button", { name: "orbit left" }).click();
    const { frames, keyframes } = await savedState(page), end = keyframes.at(-1);
    assert.deepEqual([frames, end.frame, await editor.locator(".lbw-presets").isHidden()], [41, 40, true]);
    near(end.position, [-4, 0, 4], 0.01);
    near(end.quaternion, [0, Math.SQRT1_2, 0, Math.SQRT1_2], 0.01);
    await page.keyboard.press("Control+z");
    assert.equal((await savedState(page)).keyframes.length, 2);
  });

  it("saves a move of one's own, uses it after a reload, and forgets it", async (page, editor) => {
    await moveEnd(page, editor);
    const { keyframes } = await savedState(page), open = () => editor.getByRole("button", { name: "Preset moves" }).click();
    await open();
    await editor.getByLabel("Name for this move").fill("My slide");
    await editor.getByRole("button", { name: "Save this move" }).click();
    await eventually(async () => assert.equal(await status(editor), "Saved as My slide"));
    await editor.getByRole("button", { name: "Close", exact: true }).locator("visible=true").click();
    await editor.getByRole("button", { name: "Reset:" }).click();
    await open();
    await editor.getByRole("button", { name: "My slide", exact: true }).click();
    assert.deepEqual((await savedState(page)).keyframes, keyframes);
    await open();
    await editor.getByRole("button", { name: "Forget My slide" }).click();
    await eventually(async () => assert.equal(await editor.getByRole("button", { name: "My slide" }).count(), 0));
  });

  it("says that a move could not be saved, and keeps its name", async (page, editor) => {
    await page.route("**/userdata/**", (route) => (
      route.request().method() === "POST" ? route.fulfill({ status: 507, body: "full" }) : route.continue()));
    await editor.getByRole("button", { name: "Preset moves" }).click();
    await editor.getByLabel("Name for this move").fill("My slide");
    await editor.getByRole("button", { name: "Save this move" }).click();
    await eventually(async () => assert.match(await status(editor), /cannot be changed/));
    await page.unroute("**/userdata/**");
    await settle(page);
    assert.match(await status(editor), /cannot be changed/);
    assert.equal(await editor.getByLabel("Name for this move").inputValue(), "My slide");
  });

  it("eases the way from one keyframe to the next", async (page, editor) => {
    const ease = editor.getByLabel("From this keyframe to the next");
    await ease.selectOption("cubic_in");
    await settle(page);
    assert.deepEqual((await savedState(page)).keyframes.map((key) => key.ease), ["cubic_in", undefined]);
    await editor.focus();
    for (let i = 0; i < 4; i += 1) await page.keyboard.press("Shift+ArrowRight");
    await settle(page);
    near([Number(await editor.getByLabel("Position z: forward").inputValue())], [2 * 0.5 ** 3], 0.001);
    assert.equal(await ease.inputValue(), "cubic_in");
    await page.keyboard.press("End");
    await settle(page);
    assert.ok(await ease.isDisabled());
    await moveEnd(page, editor);
    await page.keyboard.press("Home");
    await page.keyboard.press("Enter");
    assert.equal((await savedState(page)).keyframes[0].ease, "cubic_in");
  });

  it("plays at the speed asked for", async (page, editor) => {
    await editor.getByLabel("Length in frames").fill("401");
    await editor.getByLabel("Length in frames").press("Enter");
    await editor.getByLabel("Playback speed").selectOption("4");
    const rate = playRate(editor, 96);
    await editor.getByRole("button", { name: "Play", exact: true }).click();
    assert.ok(await rate > 32 && await rate < 80, `${await rate} frames a second`);
  });

  it("gives a hint until the first edit, and then never again", async (page, editor) => {
    await page.evaluate(() => localStorage.removeItem("lingbotworld.cameraEditor.hintSeen"));
    const second = await addEditorNode(page, [600, 80]), hint = second.locator(".lbw-hint");
    assert.ok(await hint.isVisible());
    await second.getByRole("button", { name: "Loop" }).click();
    assert.ok(await hint.isHidden());
    const third = await addEditorNode(page, [80, 80]);
    assert.ok(await third.locator(".lbw-hint").isHidden());
    assert.ok(await editor.isVisible());
  });

  it("shows the picture as the video has it: Prepare Image's size and fit", async (page, editor) => {
    const prepare = await addBefore(page, "LingBotWorldPrepareImage", { size: "width and height", width: 640, height: 640, fit: "crop" });
    await addBefore(page, "LoadImage", {}, 1);
    await eventually(async () => assert.equal(await aspect(editor), 1));
    const fit = () => editor.locator(".lbw-card img").evaluate((image) => image.style.objectFit);
    assert.equal(await fit(), "cover");
    await page.evaluate((id) => {
      const { widgets } = window.app.graph.getNodeById(id);
      for (const widget of widgets) if (widget.name === "fit") widget.value = "pad";
    }, prepare);
    await eventually(async () => assert.equal(await fit(), "contain"));
    const card = await editor.locator(".lbw-frame").evaluate((frame) => getComputedStyle(frame).aspectRatio);
    assert.match(card, /^1\b/);
  });

  it("shows the picture at the size of the node that makes the video", async (page, editor) => {
    await page.evaluate(() => {
      const { graph } = window.app, [target] = graph.nodes, video = window.LiteGraph.createNode("WanImageToVideo");
      graph.add(video);
      video.pos = [700, 80];
      for (const widget of video.widgets) if (widget.name === "width" || widget.name === "height") widget.value = { width: 320, height: 640 }[widget.name];
      target.connect(1, video, video.inputs.findIndex((input) => input.name === "length"));
    });
    await eventually(async () => assert.equal(await aspect(editor), 0.5));
  });

  it("shows the image that any node makes, once the workflow has run", async (page, editor) => {
    await addBefore(page, "EmptyImage", { width: 96, height: 48, color: 0x336699 });
    await page.evaluate(() => {
      const { graph } = window.app, [target] = graph.nodes, preview = window.LiteGraph.createNode("LingBotWorldCameraPreview");
      graph.add(preview);
      preview.pos = [1100, 80];
      target.connect(0, preview, 0);
    });
    assert.equal(await picture(editor), "");
    await page.evaluate(() => window.app.queuePrompt(0, 1));
    await eventually(async () => assert.match(await picture(editor), /lingbot_world_first_frame.*type=temp/));
    await eventually(async () => assert.equal(await aspect(editor), 2));
    await page.evaluate(() => {
      const source = window.app.graph.nodes.find((node) => node.type === "EmptyImage");
      for (const widget of source.widgets) if (widget.name === "color") widget.value = 0;
    });
    await eventually(async () => assert.equal(await picture(editor), "")); // another image, which nobody has seen yet
  });
});
