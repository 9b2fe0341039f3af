// LingBot-World Live on the canvas: W is held in the node's view, frames come, Stop, and the outputs arrive.

import assert from "node:assert/strict";
import { ready, settle } from "./canvas.mjs";
import { clearGraph, inBothRenderers } from "./editor.mjs";

const VIEW = ".lbw-live:visible";

/** A graph that walks on the toy at its smallest and shows the frames; the page has the nodes as window.live, window.shown. */
const addWalk = (page) => clearGraph(page).then(() => page.evaluate(() => {
  const { app, LiteGraph } = window;
  const add = (type, position, values = {}) => {
    const node = LiteGraph.createNode(type);
    node.pos = position;
    app.graph.add(node);
    for (const widget of node.widgets ?? []) if (widget.name in values) widget.value = values[widget.name];
    return node;
  };
  const seed = Math.floor(Math.random() * 1e9);
  const live = add("LingBotWorldLive", [420, 60], { prompt: "a castle", seed, chunk: "1", window: 6, sink: 2 });
  const size = { size: "width and height", width: 64, height: 48 }, image = add("LingBotWorldPrepareImage", [20, 700], size);
  const wire = (node, name, slot = 0) => node.connect(slot, live, live.inputs.findIndex((input) => input.name === name));
  wire(add("LingBotWorldLoadCausal", [20, 80], { model_name: "toy/lingbot_world_fast" }), "model");
  wire(add("LingBotWorldLoadVAE", [20, 330], { vae_name: "toy/Wan2.1_VAE.pth" }), "vae");
  wire(add("LingBotWorldLoadTextEncoder", [20, 450], { text_encoder: "toy/models_t5_umt5-xxl-enc-bf16.pth" }), "clip");
  add("LoadImage", [20, 620], { image: "example.png" }).connect(0, image, 0);
  wire(image, "start_image");
  const shown = add("PreviewImage", [1000, 80]);
  live.connect(0, shown, 0);
  Object.assign(app.canvas.ds, { scale: 1, offset: [-300, 0] });
  app.graph.setDirtyCanvas(true, true);
  shown.onExecuted = (output) => { window.shown = output.images.length; };
  Object.assign(window, { live, shown: 0 });
}));

const text = (page, part) => page.locator(`${VIEW} ${part}`).textContent();
const frames = (page) => page.waitForFunction(() => {
  const { shadowRoot } = document.querySelector(".lbw-live");
  return shadowRoot.querySelector(".stage").hasAttribute("data-seen");
});
const previewed = (page) => page.waitForFunction(() => {
  const preview = document.querySelector(".lbw-live").shadowRoot.querySelector(".preview");
  return !preview.hidden && preview.naturalWidth > 0 && preview.src.includes("example.png");
});

const leave = async (page) => {
  await page.locator(`${VIEW} [data-command=leave]`).click();
  await page.waitForFunction(async () => {
    const { queue_running: left } = await (await window.app.api.fetchApi("/queue")).json();
    return left.length === 0;
  });
};
const running = (page) => page.evaluate(async () => {
  const { queue_running: prompts } = await (await window.app.api.fetchApi("/queue")).json();
  return prompts.length;
});

inBothRenderers((it) => {
  it.both("a walk is steered in the node's view, and Stop hands it out", async (page) => {
    await addWalk(page);
    await page.locator(VIEW).waitFor();
    await settle(page);
    assert.match(await text(page, ".notice"), /^Press Run/);
    await previewed(page);
    await page.evaluate(() => window.app.queuePrompt(0, 1));
    await frames(page);
    assert.ok(await page.locator(`${VIEW} .preview`).isHidden());
    await page.keyboard.down("w"); // ComfyUI's own W opens its workflows
    await page.waitForFunction(() => {
      const { shadowRoot } = document.querySelector(".lbw-live");
      return /\d/.test(shadowRoot.querySelector("[data-figure=latency]").textContent);
    });
    await page.keyboard.up("w");
    assert.equal(await page.locator(".workflows-sidebar-tab").count(), 0);
    await page.locator(`${VIEW} [name=prompt]`).fill("a lake with ww");
    await page.keyboard.press("Enter");
    await page.locator(`${VIEW} .notice`, { hasText: "Now: a lake with ww" }).waitFor();
    await page.locator(`${VIEW} .bar [data-command=ask]`).press("Enter");
    await page.locator(`${VIEW} .ask [data-command=again]:focus`).press("Escape");
    await page.locator(`${VIEW} canvas[role=application]:focus`).waitFor();
    await page.locator(`${VIEW} [data-command=full]`).click();
    await page.waitForFunction(() => document.fullscreenElement?.classList.contains("lbw-live"));
    await page.locator(`${VIEW} [data-command=full]`).click();
    await page.waitForFunction(() => !document.fullscreenElement);
    await page.locator(`${VIEW} [data-command=leave]`).click();
    await page.waitForFunction(() => window.shown > 8);
    assert.match(await text(page, ".notice"), /^The walk is over/);
    const { prompt, saved } = await page.evaluate(async () => {
      const { output, workflow } = await window.app.graphToPrompt();
      const ours = (node) => (node.class_type ?? node.type) === "LingBotWorldLive";
      return { prompt: Object.values(output).find(ours).inputs, saved: workflow.nodes.find(ours).widgets_values };
    });
    assert.ok(!("view" in prompt));
    assert.equal(saved.length, 12);
  });

  it("another tab says that a walk goes on, and its own hint when it is over", async (page) => {
    await addWalk(page);
    const other = await page.context().newPage();
    await other.goto(process.env.COMFY_URL);
    await ready(other, "LingBotWorldLive");
    await other.evaluate(() => window.app.graph.add(window.LiteGraph.createNode("LingBotWorldLive")));
    await other.locator(".lbw-live .notice", { hasText: "Press Run" }).waitFor({ state: "attached" });
    await page.evaluate(() => window.app.queuePrompt(0, 1));
    await frames(page);
    const notice = (words) => other.locator(".lbw-live .notice", { hasText: words }).waitFor({ state: "attached" });
    await notice("A walk is running in another tab");
    await leave(page);
    await notice("Press Run");
    await other.close();
  });

  it("until the first frame the view shows the start image, which no file has", async (page) => {
    await addWalk(page);
    const before = await page.evaluate(() => {
      const { app, LiteGraph, live } = window, drawn = LiteGraph.createNode("EmptyImage");
      app.graph.add(drawn);
      for (const { name } of drawn.widgets) if (["width", "height"].includes(name)) drawn.widgets.find((one) => one.name === name).value = 64;
      const link = app.graph.getLink(live.inputs.find(({ name }) => name === "start_image").link);
      drawn.connect(0, app.graph.getNodeById(link.origin_id), 0);
      const { shadowRoot } = document.querySelector(".lbw-live"), preview = shadowRoot.querySelector(".preview");
      window.shownAtFirst = [];
      const look = () => { if (!preview.hidden && !shadowRoot.querySelector(".stage[data-seen]")) window.shownAtFirst.push(preview.src); };
      new MutationObserver(look).observe(preview, { attributes: true });
      const { src } = preview; // read first: the walk may begin before queuePrompt answers
      return app.queuePrompt(0, 1).then(() => src);
    });
    await frames(page);
    const shown = await page.evaluate(() => window.shownAtFirst.filter((url) => url.includes("lingbot_world_start")));
    assert.ok(shown.length > 0 && !before.includes("lingbot_world_start"), "the view was black");
    await leave(page);
  });

  it("a node that becomes a subgraph takes its walk along, and nothing else connects to it", async (page) => {
    await addWalk(page);
    await page.evaluate(() => window.app.queuePrompt(0, 1));
    await frames(page);
    let connections = 0;
    const count = (socket) => { connections += socket.url().includes("lingbot_world/live"); };
    page.on("websocket", count);
    await page.evaluate(() => {
      const { app } = window, { node } = app.graph.convertToSubgraph(new Set([window.live]));
      app.canvas.openSubgraph(node.subgraph, node);
      Object.assign(app.canvas.ds, { scale: 1, offset: [-300, 0] });
    });
    await page.locator(VIEW).waitFor();
    await frames(page);
    await leave(page);
    page.off("websocket", count);
    assert.equal(connections, 1);
  });

  it("an undo and another workflow's tab pause the walk, and the node that comes back takes it up", async (page) => {
    await addWalk(page);
    await page.evaluate(() => {
      const { changeTracker } = window.app.extensionManager.workflow.activeWorkflow;
      changeTracker.captureCanvasState();
      window.live.pos = [430, 70]; // what is undone
      changeTracker.captureCanvasState();
      return window.app.queuePrompt(0, 1);
    });
    await frames(page);
    await page.evaluate(() => window.app.extensionManager.workflow.activeWorkflow.changeTracker.undo());
    await page.waitForFunction(() => ![undefined, null, window.live].includes(window.app.graph.getNodeById(window.live.id)));
    await frames(page);
    await page.evaluate(() => {
      const { command, workflow } = window.app.extensionManager;
      window.walked = workflow.activeWorkflow;
      return command.execute("Comfy.NewBlankWorkflow");
    });
    await page.locator(VIEW).waitFor({ state: "detached" });
    await page.evaluate(() => { // another workflow's node of the same id
      const node = window.LiteGraph.createNode("LingBotWorldLive");
      node.id = window.live.id;
      window.app.graph.add(node);
    });
    await page.locator(`${VIEW} .notice`, { hasText: "another workflow is paused" }).waitFor();
    await page.waitForTimeout(2000); // in which a walk that is stopped would end
    assert.equal(await running(page), 1);
    await page.evaluate(() => window.app.extensionManager.command.execute("Workspace.PreviousOpenedWorkflow"));
    await page.locator(VIEW).waitFor();
    await frames(page);
    await leave(page);
  });
});
