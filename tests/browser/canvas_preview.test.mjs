// Camera Preview on the canvas: it draws without a run, again when a field before it changes, and can be read.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { loadWorkflow, settle } from "./canvas.mjs";
import { clearGraph, eventually, inBothRenderers } from "./editor.mjs";

const PREVIEW = "LingBotWorldCameraPreview";
const READABLE = 0.75; // of a drawing's own pixels: its letters of 16 pixels have 12
const MOVES = fileURLToPath(new URL("../../workflows/03 Camera moves by name and by keys.json", import.meta.url));

const face = (page) => page.locator(".lbw-preview:visible");

/** An otherwise empty graph with one node before a preview; the page has them as window.made and window.preview. */
async function addPair(page, type) {
  await clearGraph(page);
  await face(page).waitFor({ state: "detached" });
  await page.evaluate(makePair, [type, PREVIEW]);
}

function makePair([id, preview]) {
  const { app, LiteGraph } = window;
  window.made = LiteGraph.createNode(id);
  window.preview = LiteGraph.createNode(preview);
  for (const node of [window.made, window.preview]) app.graph.add(node);
  window.made.pos = [20, 80];
  window.preview.pos = [420, 80];
  window.made.connect(0, window.preview, 0);
  Object.assign(app.canvas.ds, { scale: 1, offset: [0, 0] });
  app.graph.setDirtyCanvas(true, true);
}

const set = (page, name, value) => page.evaluate(([wanted, to]) => {
  window.made.widgets.find((widget) => widget.name === wanted).value = to;
}, [name, value]);

/** The picture that is seen: its address, its own width and the pixels that it takes across on the screen. */
const picture = (page) => face(page).locator("img:visible").evaluate((image) => {
  const { width, height } = image.getBoundingClientRect();
  const own = image.naturalWidth / image.naturalHeight;
  return { src: image.src, width: image.naturalWidth, across: Math.min(width, height * own) };
});

/** How many runs this page has ever queued: other tests' runs, on the same server, may end meanwhile. */
const queued = (page) => page.evaluate(async () => {
  const { api } = window.app, told = async (path) => (await api.fetchApi(path)).json();
  const { queue_running: running, queue_pending: waiting } = await told("/queue"), history = await told("/history");
  const runs = [...running, ...waiting, ...Object.values(history).map(({ prompt }) => prompt)];
  return new Set(runs.filter(([,,, { client_id: client }]) => client === api.clientId).map(([, run]) => run)).size;
});

inBothRenderers((it) => {
  it.both("a path is drawn without a run, and again when a field changes", async (page) => {
    const runs = await queued(page);
    await addPair(page, "LingBotWorldCameraPreset");
    await eventually(async () => assert.equal((await picture(page)).width, 800));
    const { src, across, width } = await picture(page);
    assert.match(src, /^blob:/);
    assert.ok(across >= READABLE * width, `${across} pixels across`);
    await set(page, "preset", "dolly_in");
    await eventually(async () => assert.notEqual((await picture(page)).src, src));
    assert.equal(await queued(page), runs);
  });

  it("a field of a subgraph's node counts as the one inside that it stands for", async (page) => {
    await addPair(page, "LingBotWorldCameraKeys");
    await page.evaluate(() => {
      const { node } = window.app.graph.convertToSubgraph(new Set([window.made])), [inside] = node.subgraph.nodes;
      const script = inside.inputs.find(({ name }) => name === "script");
      node.subgraph.addInput("script", "STRING").connect(script, inside);
      window.made = node;
    });
    await eventually(async () => assert.match((await picture(page)).src, /^blob:/));
    const { src } = await picture(page);
    await set(page, "script", "d-9");
    await eventually(async () => assert.ok(![null, src].includes((await picture(page)).src)));
    await set(page, "script", "walk on");
    await face(page).getByText("cannot read").waitFor();
  });

  it("what is wrong with a path stands in the drawing's place", async (page) => {
    await addPair(page, "LingBotWorldCameraKeys");
    await eventually(async () => assert.ok(await picture(page)));
    await set(page, "script", "walk on");
    await face(page).getByText("cannot read").waitFor();
    await set(page, "script", "w-17");
    await eventually(async () => assert.match((await picture(page)).src, /^blob:/));
  });

  it("without a camera, and with one that only a run tells, it says so", async (page) => {
    await addPair(page, "LingBotWorldCameraPreset");
    await eventually(async () => assert.ok(await picture(page)));
    await page.evaluate(() => window.preview.disconnectInput(0));
    await face(page).getByText("Connect a camera to see its path.").waitFor();
    await addPair(page, "LingBotWorldCameraKeyframes");
    await face(page).getByText("Drawn when the workflow runs.").waitFor();
  });

  it("a run shows its own drawing, and no second one", async (page) => {
    await addPair(page, "LingBotWorldCameraPreset");
    await set(page, "amount", Math.round(Math.random() * 1e5) / 1e3);
    await eventually(async () => assert.match((await picture(page)).src, /^blob:/));
    await page.evaluate(() => window.app.queuePrompt(0, 1, [String(window.preview.id)]));
    await eventually(async () => assert.match((await picture(page)).src, /type=temp/));
    await settle(page);
    assert.deepEqual(await page.evaluate(() => [window.preview.imgs?.length ?? 0, document.querySelectorAll("img[src*='type=temp']").length]), [0, 1]);
    await set(page, "preset", "pan_left");
    await eventually(async () => assert.match((await picture(page)).src, /^blob:/));
  });

  it("it follows the page's theme, also with what a run drew", async (page) => {
    const theme = (name) => page.evaluate((to) => window.app.extensionManager.setting.set("Comfy.ColorPalette", to), name);
    const brightness = () => face(page).locator("img:visible").evaluate((image) => {
      const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }), pen = canvas.getContext("2d");
      pen.drawImage(image, 0, 0, 1, 1);
      return pen.getImageData(0, 0, 1, 1).data[0];
    });
    const both = async () => {
      await eventually(async () => assert.ok(await brightness() < 90, `${await brightness()}`));
      await theme("light");
      await eventually(async () => assert.ok(await brightness() > 165, `${await brightness()}`));
      await theme("dark");
    };
    await addPair(page, "LingBotWorldCameraPreset");
    await eventually(async () => assert.ok(await picture(page)));
    await both();
    await page.evaluate(() => window.app.queuePrompt(0, 1, [String(window.preview.id)]));
    await eventually(async () => assert.match((await picture(page)).src, /type=temp/));
    await both();
    assert.match((await picture(page)).src, /type=temp/);
  });

  it("the shipped workflow's preview is drawn as it opens, large enough to be read", async (page) => {
    await loadWorkflow(page, MOVES, JSON.parse(readFileSync(MOVES)).nodes.length);
    await page.evaluate((type) => {
      const { graph, canvas } = window.app, node = graph.nodes.find((candidate) => candidate.type === type);
      Object.assign(canvas.ds, { scale: 1, offset: [60 - node.pos[0], 80 - node.pos[1]] });
      graph.setDirtyCanvas(true, true);
    }, PREVIEW);
    await eventually(async () => {
      const { across, width } = await picture(page);
      assert.ok(width > 0 && across >= READABLE * width, `${across} of ${width} pixels`);
    });
  });
});
