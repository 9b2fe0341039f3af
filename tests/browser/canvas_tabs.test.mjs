// What a run makes is shown on the nodes that it is of: not on those of another workflow's tab that have the same ids, and not on
// nodes whose fields have changed since they were queued.

import assert from "node:assert/strict";
import { settle } from "./canvas.mjs";
import { EDITOR, eventually, inBothRenderers } from "./editor.mjs";

const URL = process.env.COMFY_URL;
const SLOW = { module: ".nodes.camera.preview", name: "preview_image", error: "slow" };
const SLOW_EDITOR = { module: ".nodes.camera.make", name: "show_warnings", error: "slow" };

/** Has a function of the pack take seconds, or every one its own time again. */
const fault = (body = {}) => fetch(`${URL}/lingbot_fault`, { method: "POST", body: JSON.stringify(body) });

/** A workflow in a tab of its own; returns the tab's name. */
const newTab = (page) => page.evaluate(async () => {
  const { command, workflow } = window.app.extensionManager;
  await command.execute("Comfy.NewBlankWorkflow");
  return workflow.activeWorkflow.filename;
});

/** A path of some keys, through a lens that no earlier run had, and its preview for a video of 41 frames. */
async function addPair(page, keys) {
  await page.evaluate((script) => {
    const { app, LiteGraph } = window;
    const [path, preview] = ["Keys", "Preview"].map((name) => LiteGraph.createNode(`LingBotWorldCamera${name}`));
    for (const node of [path, preview]) app.graph.add(node);
    path.pos = [20, 80];
    preview.pos = [420, 80];
    const set = (node, name, value) => { node.widgets.find((widget) => widget.name === name).value = value; };
    set(path, "script", script);
    set(path, "fov_deg", 60 + Math.round(Math.random() * 1e4) / 1e4);
    set(preview, "frames", 41);
    path.connect(0, preview, 0);
    Object.assign(app.canvas.ds, { scale: 1, offset: [0, 0] });
    app.extensionManager.workflow.activeWorkflow.changeTracker.captureCanvasState();
  }, keys);
  await eventually(async () => assert.match(await picture(page), /^blob:/));
}

const picture = (page) => page.locator(".lbw-preview:visible img:visible").getAttribute("src", { timeout: 1000 });
const said = (page) => page.locator(".lbw-said:visible").allTextContents();
const queue = (page) => page.evaluate(() => window.app.queuePrompt(0, 1));

/** Waits until nothing is queued any more, and what came of it can be seen. */
async function ended(page) {
  await eventually(async () => {
    const { queue_running: running, queue_pending: pending } = await (await fetch(`${URL}/queue`)).json();
    assert.equal(running.length + pending.length, 0);
  });
  await settle(page);
  await page.waitForTimeout(1000); // longer than any node waits to look at its fields
}

inBothRenderers((it) => {
  it("a run's drawing and its words stay with its workflow, and are there when one comes back to it", async (page) => {
    const first = await newTab(page);
    await addPair(page, "w-17");
    await fault(SLOW);
    await queue(page);
    await newTab(page);
    await addPair(page, "d-9");
    const own = await picture(page);
    await ended(page);
    await fault();
    assert.equal(await picture(page), own);
    assert.deepEqual(await said(page), []);
    await page.getByText(first, { exact: true }).first().click();
    await page.mouse.move(900, 700); // a tab under the mouse shows its workflow over the canvas
    await eventually(async () => assert.match((await said(page)).join(), /^Shorter than the video: 17 poses/));
  });

  it("a drawing of fields that have changed since is not shown, one of the same fields is", async (page) => {
    await newTab(page);
    await addPair(page, "w-13");
    const before = await picture(page);
    await fault(SLOW);
    await queue(page);
    await page.evaluate(() => { window.app.graph.nodes[0].widgets.find(({ name }) => name === "script").value = "a-9"; });
    await eventually(async () => assert.notEqual(await picture(page), before));
    const own = await picture(page);
    await ended(page);
    await fault();
    assert.equal(await picture(page), own);
    await queue(page);
    await eventually(async () => assert.match(await picture(page), /\/view\?/));
  });

  it("an editor takes no first frame of an image that has changed since", async (page) => {
    await newTab(page);
    await page.evaluate(() => {
      const { app, LiteGraph } = window;
      const [image, editor, preview] = ["EmptyImage", "LingBotWorldCameraEditor", "LingBotWorldCameraPreview"].map((type, at) => {
        const node = LiteGraph.createNode(type);
        node.pos = [20 + 450 * at, 80];
        app.graph.add(node);
        return node;
      });
      window.color = image.widgets.find(({ name }) => name === "color");
      window.color.value = Math.floor(Math.random() * 2 ** 24);
      image.connect(0, editor, 0);
      editor.connect(0, preview, 0);
    });
    const card = page.locator(`${EDITOR} .lbw-card img`);
    await fault(SLOW_EDITOR);
    await queue(page);
    await page.evaluate(() => { window.color.value = (window.color.value + 1) % 2 ** 24; });
    await ended(page);
    await fault();
    assert.equal(await card.getAttribute("src"), "");
    await queue(page);
    await eventually(async () => assert.match(await card.getAttribute("src"), /lingbot_world_first_frame/));
  });
});
