// Chromium on a running ComfyUI. COMFY_URL says where it runs, CHROMIUM which browser (none is ever downloaded).

import { chromium } from "playwright-core";

const ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"];
const NODE = "LingBotWorldCameraEditor";
export const EDITOR = ".lbw-editor:visible"; // ComfyUI keeps the hidden widgets of graphs that are not shown

export const launch = () => chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ARGUMENTS });

/** A page on an empty graph, in the Nodes 2.0 renderer when `vue`; page errors of the editor are collected. */
export async function openComfy(browser, vue) {
  const url = process.env.COMFY_URL;
  const settings = { "Comfy.TutorialCompleted": true, "Comfy.VueNodes.Enabled": vue, "Comfy.Workflow.Persist": false,
    "Comfy.Workflow.WorkflowTabsPosition": "Topbar", "Comfy.UserConsent": true };
  await fetch(`${url}/api/settings`, { method: "POST", body: JSON.stringify(settings), headers: { "Content-Type": "application/json" } });
  const permissions = ["clipboard-read", "clipboard-write"];
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, hasTouch: true, permissions });
  const page = await context.newPage();
  page.faults = [];
  page.on("pageerror", (error) => page.faults.push(error.message));
  await page.goto(url);
  await page.waitForFunction((id) => window.app?.graph && window.LiteGraph?.registered_node_types?.[id], NODE, { timeout: 60000 });
  await page.waitForTimeout(500);
  return page;
}

/** An empty graph on the canvas, without what an earlier test left in it. */
export async function clearGraph(page) {
  await page.evaluate(() => {
    window.app.canvas.setGraph(window.app.rootGraph ?? window.app.graph);
    window.app.graph.clear();
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
  await page.waitForTimeout(300);
  await page.evaluate(() => window.app.extensionManager.workflow.activeWorkflow.changeTracker.captureCanvasState());
  return editor;
}

/** The document in the node's widget, as it would be saved. */
export const savedState = (page, index = 0) => page.evaluate(([id, i]) => {
  const node = window.app.graph.nodes.filter((candidate) => candidate.type === id)[i];
  return JSON.parse(node.widgets.find((widget) => widget.type === "LINGBOT_CAMERA_EDITOR").value);
}, [NODE, index]);
