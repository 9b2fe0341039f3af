// What a run says on a node: it stays when the run has ended, once, goes with the next run, and is never saved.

import assert from "node:assert/strict";
import { apiPrompt, settle } from "./canvas.mjs";
import { clearGraph, eventually, inBothRenderers } from "./editor.mjs";

const PREVIEW = "LingBotWorldCameraPreview"; // which says at once what is wrong with its path
const words = (frames) => `Only the first ${frames} of 81 poses are used.`;

/** An otherwise empty graph with a path of 81 poses, another one each time (the server would not run it again), and its preview. */
async function addPreview(page) {
  await clearGraph(page);
  await page.locator(".lbw-said").waitFor({ state: "detached" });
  await page.evaluate((type) => {
    const { app, LiteGraph } = window, [path, preview] = ["LingBotWorldCameraPreset", type].map((id) => LiteGraph.createNode(id));
    for (const node of [path, preview]) app.graph.add(node);
    path.pos = [20, 80];
    preview.pos = [420, 80];
    path.widgets.find(({ name }) => name === "amount").value = Math.round(Math.random() * 1e5) / 1e5;
    path.connect(0, preview, 0);
    Object.assign(app.canvas.ds, { scale: 1, offset: [0, 0] });
    app.graph.setDirtyCanvas(true, true);
  }, PREVIEW);
}

/** Runs the workflow to its end, with a number in the preview's field `frames` if one is given. */
async function run(page, frames) {
  if (frames !== undefined) {
    await eventually(async () => { // a field may still be busy with the number of before
      await page.evaluate(setFrames, [PREVIEW, frames]);
      await settle(page);
      assert.equal(await page.evaluate(setFrames, [PREVIEW]), frames);
    });
  }
  await page.evaluate(async () => {
    const { app } = window;
    const ended = new Promise((resolve) => { app.api.addEventListener("execution_success", resolve, { once: true }); });
    await app.queuePrompt(0, 1);
    await ended;
  });
  await settle(page); // the front-end takes away what it shows of a run alone
}

/** In the page: the number in the preview's field, which becomes another one if that is given. */
function setFrames([type, number]) {
  const root = window.app.rootGraph ?? window.app.graph, graphs = [root, ...(root.subgraphs?.values() ?? [])];
  const [preview] = graphs.flatMap(({ nodes }) => nodes).filter((node) => node.type === type);
  const field = preview.widgets.find(({ name }) => name === "frames");
  if (number !== undefined) field.value = number;
  return field.value;
}

/** What is said on nodes, wherever it is seen. */
const said = (page) => page.getByText(/^(Only|Shorter)/).and(page.locator(":visible")).allTextContents();

/** The words that what is said begins with; a page that has much to do draws them later than the run ends. */
const says = (page, begins) => eventually(async () => {
  assert.deepEqual((await said(page)).map((text, i) => text.slice(0, begins[i]?.length)), begins);
});

const nodes = (page) => page.evaluate(() => {
  const { graph } = window.app, { nodes: all } = graph.serialize();
  return all.map(({ id, widgets_values: values }) => [values, graph.getNodeById(id).widgets.map(({ name }) => name)]);
});

inBothRenderers((it) => {
  it.both("stays after the run, and after one in which the node did not run again", async (page) => {
    await addPreview(page);
    await run(page, 41);
    await says(page, [words(41)]);
    const [text] = await said(page);
    await run(page);
    await says(page, [text]);
  });

  it("gives way to what the next run says, or to nothing", async (page) => {
    await addPreview(page);
    await run(page, 41);
    await run(page, 33);
    await says(page, [words(33)]);
    await run(page, 0);
    await says(page, []);
    assert.equal(await page.locator(".lbw-said").count(), 0);
    await run(page, 33);
    await says(page, [words(33)]);
  });

  it("is no part of the prompt, of the workflow, of a copy, or of what undo brings back", async (page) => {
    await addPreview(page);
    await page.evaluate(() => { window.app.graph.nodes[1].widgets.find(({ name }) => name === "frames").value = 41; });
    const [queued, saved] = [await apiPrompt(page), await nodes(page)];
    await run(page);
    await says(page, [words(41)]);
    assert.deepEqual(await apiPrompt(page), queued);
    assert.deepEqual((await nodes(page)).map(([values]) => values), saved.map(([values]) => values));
    const copied = await page.evaluate(() => window.app.graph.nodes[1].clone().widgets.map(({ name }) => name));
    assert.deepEqual(copied, saved[1][1]);
    await page.evaluate(async () => {
      const { changeTracker } = window.app.extensionManager.workflow.activeWorkflow;
      changeTracker.captureCanvasState();
      window.app.graph.nodes[0].pos = [20, 400];
      changeTracker.captureCanvasState();
      await changeTracker.undo();
    });
    await eventually(async () => assert.deepEqual(await nodes(page), saved));
    await page.locator(".lbw-said").waitFor({ state: "detached" });
    await run(page, 33);
    await says(page, [words(33)]);
  });

  it.both("is found inside a subgraph", async (page) => {
    await addPreview(page);
    await page.evaluate(() => { window.app.graph.convertToSubgraph(new Set([window.app.graph.nodes[1]])); });
    await run(page, 41);
    assert.deepEqual(await said(page), []);
    await page.evaluate(() => window.app.canvas.setGraph([...window.app.rootGraph.subgraphs.values()][0]));
    await eventually(async () => assert.equal((await said(page)).length, 1));
    await page.evaluate(() => { // clearGraph leaves its drawing in the page, for the tests that follow
      const { graph } = window.app.canvas;
      for (const node of [...graph.nodes]) graph.remove(node);
    });
  });
});
