// The camera editor on ComfyUI's canvas: open a page, add nodes, find points, measure, read what would be saved.
// COMFY_URL says where ComfyUI runs; tests/host/canvas/test_web.py starts one.

import assert from "node:assert/strict";
import { after, describe, test } from "node:test";
import { choose, launch, PATIENCE, ready, settle, withSecondTry } from "./canvas.mjs";

export const NODE = "LingBotWorldCameraEditor", WIDGET = "LINGBOT_CAMERA_EDITOR";
export const EDITOR = ".lbw-editor:visible"; // ComfyUI keeps the hidden widgets of graphs that are not shown
export const LIMIT = { timeout: 2 * PATIENCE }; // of a case, its second try included

/** A page on an empty graph; errors thrown in it are collected in its `faults`. */
async function openPage(vue, settings) {
  browser ??= await launch();
  const more = { "Comfy.Workflow.WorkflowTabsPosition": "Topbar", "Comfy.UserConsent": true, "Comfy.EnableTooltips": true, ...settings };
  await choose(process.env.COMFY_URL, vue, more);
  const permissions = ["clipboard-read", "clipboard-write"];
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, hasTouch: true, permissions });
  context.setDefaultTimeout(PATIENCE);
  const page = Object.assign(await context.newPage(), { faults: [] });
  page.on("pageerror", (error) => page.faults.push(error.message));
  await page.goto(process.env.COMFY_URL);
  await ready(page, NODE);
  await page.waitForFunction(() => window.app.extensionManager?.workflow?.activeWorkflow?.changeTracker);
  return page;
}

let browser;
const pages = new Map();
after(() => browser?.close());

/** The page of a renderer. Files share it in one process (all.mjs), but for one with settings of its own: to open one takes
 * longer than many a file's cases. */
async function pageOf(vue, settings) {
  if (settings) return openPage(vue, settings);
  if (!pages.has(vue)) pages.set(vue, await openPage(vue));
  return pages.get(vue);
}

/**
 * Runs `cases(it, vue)`: `it(name, async (page) => ...)` in one of the two renderers, by turns, with LINGBOT_TESTS=all in both;
 * `it.both(...)`, for what the renderers do differently, always in both. Whatever is thrown in the page fails the case. A second
 * try has a new page.
 */
export function inBothRenderers(cases, settings) {
  for (const vue of [false, true]) {
    describe(vue ? "Nodes 2.0" : "classic nodes", () => {
      let page, turns = 0;
      const once = async (body) => {
        page ??= await pageOf(vue, settings);
        await body(page);
        assert.deepEqual(page.faults, []);
      };
      const tidy = async () => {
        await page?.context().close();
        pages.delete(vue);
        page = undefined;
        for (const [address, words] of [["queue", { clear: true }], ["interrupt", {}], ["lingbot_fault", {}]]) {
          await fetch(`${process.env.COMFY_URL}/${address}`, { method: "POST", body: JSON.stringify(words) });
        }
      };
      const both = (name, body) => test(name, LIMIT, withSecondTry(() => once(body), tidy));
      after(() => settings && page?.context().close());
      const it = (...given) => {
        turns += 1;
        if (process.env.LINGBOT_TESTS === "all" || vue === (turns % 2 === 0)) both(...given);
      };
      cases(Object.assign(it, { both }), vue);
    });
  }
}

/** The same with cases that each start with one editor node: `it(name, async (page, editor) => ...)`. */
export function editorInBothRenderers(cases, settings) {
  inBothRenderers((plain, vue) => {
    const withEditor = (body) => async (page) => {
      await clearGraph(page);
      await body(page, await addEditorNode(page));
    };
    const it = (name, body) => plain(name, withEditor(body));
    cases(Object.assign(it, { both: (name, body) => plain.both(name, withEditor(body)) }), vue);
  }, settings);
}

/**
 * An empty graph on the canvas, without what an earlier test left in it. Ids go on, also after a workflow with lower ones was
 * loaded: the front-end keeps what stands in fields by their nodes' ids, so that after a clearing a new node of any type has what
 * stood in fields of these names before.
 */
export async function clearGraph(page) {
  await page.evaluate(() => {
    window.app.canvas.setGraph(window.app.rootGraph ?? window.app.graph);
    window.usedIds = Math.max(window.usedIds ?? 0, window.app.graph.last_node_id) + 100; // more than a test makes nodes
    window.app.graph.clear();
    window.app.graph.last_node_id = window.usedIds;
  });
  await page.locator(EDITOR).waitFor({ state: "detached" });
}

/** Adds an editor node at a place on the canvas and waits for its widget; returns a locator of the editor. */
export async function addEditorNode(page, position = [80, 80], size = [460, 640]) {
  const count = await page.locator(EDITOR).count();
  await page.evaluate(([id, pos, wanted]) => {
    const node = window.LiteGraph.createNode(id);
    node.pos = pos;
    window.app.graph.add(node);
    node.setSize(wanted);
    Object.assign(window.app.canvas.ds, { scale: 1, offset: [0, 0] });
    window.app.graph.setDirtyCanvas(true, true);
  }, [NODE, position, size]);
  const editor = page.locator(EDITOR).nth(count);
  await editor.waitFor({ state: "visible" });
  await settle(page);
  await page.evaluate(() => window.app.extensionManager.workflow.activeWorkflow.changeTracker.captureCanvasState());
  return editor;
}

/** The document in the widget of the n-th editor node (by age) of the graph shown, as it would be saved. */
export const savedState = (page, index = 0) => page.evaluate(([id, type, i]) => {
  const { nodes } = window.app.canvas.graph, editors = nodes.filter((candidate) => candidate.type === id);
  const node = editors.sort((a, b) => a.id - b.id)[i];
  return JSON.parse(node.widgets.find((widget) => widget.type === type).value);
}, [NODE, WIDGET, index]);

/** Gives the widget of the first node a document, as loading a workflow does. */
export const setText = (page, text) => page.evaluate(([type, value]) => {
  window.app.graph.nodes[0].widgets.find((widget) => widget.type === type).value = value;
}, [WIDGET, text]);

/** Keyframes of each editor in the API prompt, its subgraphs' too. */
export const queuedKeyframes = (page) => page.evaluate(async (id) => {
  const { output } = await window.app.graphToPrompt();
  const nodes = Object.values(output).filter((node) => node.class_type === id);
  return nodes.map((node) => JSON.parse(Object.values(node.inputs)[0]).keyframes);
}, NODE);

/** Screen point of a world point in the top (x, z) or side (z, y) view, for the bounds of the default path. */
export async function pointIn(editor, view, [x, y, z]) {
  const box = await editor.locator(`[data-view=${view}]`).boundingBox(), extent = 2, span = (length) => length + 0.45 * extent;
  const [right, down, spans] = view === "top" ? [x, 1 - z, [span(0), span(2)]] : [z - 1, y, [span(2), span(0)]];
  const focal = Math.min(box.width / spans[0], box.height / spans[1]);
  return [box.x + box.width / 2 + right * focal, box.y + box.height / 2 + down * focal];
}

/** Screen point of a frame of the default length in the time line's row of keyframes. */
export async function pointOnTime(editor, frame, frames = 81) {
  const { x, y, width, height } = await editor.locator("[data-view=time]").boundingBox();
  return [x + 10 + frame * (width - 20) / (frames - 1), y + height - 11];
}

export async function drag(page, from, to, steps = 6) {
  await page.mouse.move(...from);
  await page.mouse.down();
  await page.mouse.move(...to, { steps });
  await page.mouse.up();
}

export const middle = async (locator) => {
  await locator.waitFor({ state: "visible" }); // the flight pads are, a frame after Fly
  const box = await locator.boundingBox();
  return [box.x + box.width / 2, box.y + box.height / 2];
};
export const near = (found, expected, tolerance) => found.forEach((value, i) =>
  assert.ok(Math.abs(value - expected[i]) <= tolerance, `${found} is not within ${tolerance} of ${expected}`));
/** Tries assertions until they hold; the last one's failure after a minute. */
export async function eventually(assertions) {
  for (const end = Date.now() + 60000; ; await new Promise((resolve) => { setTimeout(resolve, 50); })) {
    const failed = await assertions().then(() => null, (error) => error);
    if (!failed) return;
    if (Date.now() > end) throw failed;
  }
}
/** The number in the field with a label, such as Yaw, as the editor shows it. */
export const shown = async (editor, label) => Number(await editor.getByLabel(label).inputValue());
/** The frame under the playhead, as the editor shows it. */
export const playhead = async (editor) => Number.parseInt(await editor.locator("output").textContent(), 10);
/** Frames a second at which the playhead goes on from now until it is past a frame, by the page's own clock. */
export const playRate = (editor, frame) => editor.locator("output").evaluate((output, last) => new Promise((resolve) => {
  let first = null;
  const look = (time) => {
    const now = { time, frame: Number.parseInt(output.textContent, 10) };
    first = !first || now.frame <= first.frame ? now : first;
    if (now.frame < last) requestAnimationFrame(look);
    else resolve((now.frame - first.frame) / (now.time - first.time) * 1000);
  };
  requestAnimationFrame(look);
}), frame);
export const graphState = (page) => page.evaluate(() => {
  const { nodes } = window.app.graph;
  return { count: nodes.length, positions: nodes.map((node) => [...node.pos]), scale: window.app.canvas.ds.scale };
});

export async function moveEnd(page, editor, x = 0.5) {
  await drag(page, await pointIn(editor, "top", [0, 0, 2]), await pointIn(editor, "top", [x, 0, 2]));
  await settle(page);
}
