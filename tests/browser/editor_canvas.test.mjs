// The editor as a guest on ComfyUI's canvas: sizes, the wheel, the middle button, the right-hand panel, subgraphs.

import assert from "node:assert/strict";
import { settle } from "./canvas.mjs";
import { EDITOR, editorInBothRenderers, eventually, graphState, middle, NODE, savedState } from "./editor.mjs";

const graphView = (page) => page.evaluate(() => ({ scale: window.app.canvas.ds.scale, offset: [...window.app.canvas.ds.offset] }));
const width = async (editor) => Math.round((await editor.boundingBox()).width);

/** Drags with the middle button; returns how far the graph went. */
async function middleDrag(page, [x, y], [dx, dy]) {
  const before = (await graphView(page)).offset;
  await page.mouse.move(x, y);
  await page.mouse.down({ button: "middle" });
  await page.mouse.move(x + dx, y + dy, { steps: 4 });
  await page.mouse.up({ button: "middle" });
  await settle(page);
  return (await graphView(page)).offset.map((value, i) => Math.round(value - before[i]));
}

/** What a middle click on Linux does: the browser pastes the newest selection into what has the focus. */
const pasteSelection = (page, text) => page.evaluate((selected) => {
  const clipboardData = new DataTransfer();
  clipboardData.setData("text/plain", selected);
  document.activeElement.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
}, text);

/** Connects a new LoadImage to the first input of the only node. */
const connectImage = (page) => page.evaluate(() => {
  const [target] = window.app.graph.nodes, load = window.LiteGraph.createNode("LoadImage");
  window.app.graph.add(load);
  load.pos = [700, 80];
  load.connect(0, target, target.inputs.findIndex((input) => input.type === "IMAGE"));
});

/** Views that are too small to point in, with what they measure. */
async function smallViews(editor) {
  const boxes = await Promise.all(["world", "top", "side"].map(async (view) => [view, await editor.locator(`[data-view=${view}]`).boundingBox()]));
  return boxes.filter(([, box]) => !(box?.width > 100 && box.height > 60));
}

editorInBothRenderers((it, vue) => {
  it.both("keeps its width when the right-hand panel draws it", async (page, editor) => {
    const before = await width(editor);
    await page.getByRole("button", { name: "Toggle properties panel" }).first().click();
    await page.evaluate(() => window.app.canvas.selectItems([window.app.graph.nodes[0]]));
    await settle(page);
    await editor.getByRole("button", { name: "Show everything" }).click();
    await page.waitForTimeout(300); // the panel draws the widget when it is laid out
    const during = await width(editor);
    await page.getByRole("button", { name: "Toggle properties panel" }).first().click();
    assert.deepEqual([during, await width(editor)], [before, before]);
  });

  it.both("has a least size", async (page, editor) => {
    await page.evaluate(() => {
      window.app.graph.nodes[0].setSize([10, 10]);
      window.app.graph.setDirtyCanvas(true, true);
    });
    await settle(page);
    const box = await editor.boundingBox();
    assert.ok(box.width >= 390 && box.height >= 400, JSON.stringify(box));
    let small;
    for (let tries = 0; tries < 20 && small?.length !== 0; tries += 1) { // a busy machine lays them out some frames later
      await settle(page);
      small = await smallViews(editor);
    }
    assert.deepEqual(small, []);
    const node = await page.evaluate(() => window.app.graph.nodes[0].size[0]);
    if (!vue) assert.ok(node >= box.width, `the editor is ${box.width} wide in a node of ${node}`);
  });

  it.both("leaves wheel and middle button to the canvas until it has the focus", async (page, editor) => {
    const start = await graphView(page), spot = await middle(editor.locator("[data-view=top]")), state = await savedState(page);
    await page.mouse.move(...spot);
    await page.mouse.wheel(0, -200);
    await settle(page);
    assert.ok((await graphView(page)).scale > start.scale, "the wheel did not zoom the graph");
    await page.mouse.wheel(0, 200);
    await settle(page);
    assert.deepEqual(await middleDrag(page, spot, [60, 30]), [60, 30].map((value) => Math.round(value / start.scale)));
    assert.equal(await editor.evaluate((root) => root.contains(document.activeElement)), false);
    assert.deepEqual(await savedState(page), state);
  });

  it.both("takes the wheel, and in classic nodes the middle button, in a focused view, not over its fields", async (page, editor) => {
    const view = editor.locator("[data-view=top]"), start = await graphView(page), state = await savedState(page);
    await view.focus();
    const picture = () => view.evaluate((canvas) => canvas.toDataURL()), first = await picture(), spot = await middle(view);
    if (!vue) assert.deepEqual(await middleDrag(page, spot, [30, 10]), [0, 0]); // Nodes 2.0 takes it before any widget
    const panned = await picture();
    if (!vue) assert.notEqual(panned, first);
    await page.mouse.wheel(0, -200);
    await settle(page);
    assert.notEqual(await picture(), panned);
    assert.deepEqual([await graphView(page), await savedState(page)], [start, state]);
    await page.mouse.move(...await middle(editor.getByText("yaw")));
    await page.mouse.wheel(0, -200);
    await settle(page);
    assert.ok((await graphView(page)).scale > start.scale, "the wheel over a field did not zoom the graph");
  });

  it.both("is drawn as sharp as the graph and the page are zoomed", async (page, editor) => {
    const canvas = await editor.locator("[data-view=top]").elementHandle(), zoom = await page.context().newCDPSession(page);
    const size = page.viewportSize();
    const sharp = (wanted) => page.waitForFunction(([view, scale]) => Math.abs(view.width / view.clientWidth - scale) < 0.1, [canvas, wanted]);
    const zoomGraph = (scale) => page.evaluate((wanted) => {
      window.app.canvas.ds.scale = wanted;
      window.app.canvas.setDirty(true, true);
    }, scale);
    await zoomGraph(2);
    await sharp(2);
    await zoomGraph(1);
    await sharp(1);
    await zoom.send("Emulation.setDeviceMetricsOverride", { width: 1280, height: 900, deviceScaleFactor: 1.5, mobile: false });
    await sharp(1.5);
    await zoom.send("Emulation.clearDeviceMetricsOverride"); // Playwright's own too: a new size has it set anew
    await page.setViewportSize({ ...size, width: size.width + 1 });
    await page.setViewportSize(size);
    await sharp(1);
    assert.deepEqual(await page.evaluate(() => [innerWidth, innerHeight]), [size.width, size.height]);
  });

  it.both("opens no menu where the right button pans a view", async (page, editor) => {
    const [x, y] = await middle(editor.locator("[data-view=top]"));
    await page.mouse.move(x + 40, y);
    await page.mouse.down({ button: "right" });
    await page.mouse.move(x, y + 10, { steps: 3 });
    await page.mouse.up({ button: "right" });
    await settle(page);
    assert.equal(await page.locator(".litecontextmenu:visible, .p-contextmenu:visible").count(), 0);
  });

  it.both("takes no paste that a middle click makes", async (page, editor) => {
    const state = await savedState(page);
    await editor.focus();
    await pasteSelection(page, JSON.stringify({ ...state, fps: 24 }));
    await page.mouse.click(...await middle(editor.locator("[data-view=side]")), { button: "middle" });
    await pasteSelection(page, JSON.stringify({ ...state, fps: 24 }));
    assert.deepEqual(await savedState(page), state);
    assert.equal((await graphState(page)).count, 1);
  });

  it.both("keeps the first frame inside a subgraph", async (page, editor) => {
    await connectImage(page);
    await editor.locator(".lbw-card img:not([src=''])").waitFor({ state: "attached" });
    const source = await editor.locator(".lbw-card img").getAttribute("src");
    await page.evaluate((type) => {
      const { graph, canvas } = window.app, node = graph.nodes.find((candidate) => candidate.type === type);
      const latent = window.LiteGraph.createNode("WanImageToVideo"); // which an editor without Prepare Image looks for
      graph.add(latent);
      node.connect(1, latent, latent.inputs.findIndex(({ name }) => name === "length"));
      graph.convertToSubgraph(new Set([node]));
      canvas.setGraph([...window.app.rootGraph.subgraphs.values()].at(-1));
      Object.assign(canvas.ds, { scale: 1, offset: [0, 0] });
    }, NODE);
    await eventually(async () => assert.equal(await page.locator(EDITOR).first().locator("img").getAttribute("src"), source));
  });

  it.both("shows no tooltip over its neighbour", async (page, editor) => {
    await page.mouse.move(...await middle(editor.locator("[data-view=world]")));
    await page.waitForTimeout(1200); // longer than ComfyUI waits before it shows one
    assert.equal(await page.getByText("Keyframes of the path").count(), 0);
    assert.equal(await editor.evaluate((root) => root.closest("[title]")?.title ?? ""), "");
  });

  it.both("is on the node of a subgraph that its field is promoted to, and what is drawn there is saved and queued", async (page, editor) => {
    await editor.waitFor();
    await page.evaluate((type) => {
      const { graph, canvas } = window.app, inner = graph.nodes.find((node) => node.type === type);
      const { node } = graph.convertToSubgraph(new Set([inner])), [inside] = node.subgraph.nodes;
      window.promoted = node.subgraph.addInput("path", "STRING");
      window.promoted.connect(inside.inputs.find(({ name }) => name === "path"), inside);
      Object.assign(canvas.ds, { scale: 1, offset: [200 - node.pos[0], 100 - node.pos[1]] });
      graph.setDirtyCanvas(true, true);
      window.outer = node;
    }, NODE);
    await editor.waitFor();
    const frames = editor.locator("[data-setting=frames]");
    await frames.fill("97");
    await frames.press("Enter");
    await eventually(async () => {
      const [queued, saved] = await page.evaluate(async (type) => {
        const { output, workflow } = await window.app.graphToPrompt();
        const { inputs } = Object.values(output).find((node) => node.class_type === type);
        return [inputs.path, workflow.nodes.find(({ id }) => String(id) === String(window.outer.id)).widgets_values.at(-1)];
      }, NODE);
      assert.equal(JSON.parse(queued).frames, 97);
      assert.equal(saved, queued);
    });
    await page.evaluate(() => window.outer.subgraph.removeInput(window.promoted));
    const names = () => page.evaluate(() => window.outer.widgets.map(({ name }) => name));
    await eventually(async () => assert.ok(!(await names()).includes("camera editor")));
  });
});
