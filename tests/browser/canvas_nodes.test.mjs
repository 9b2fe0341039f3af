// The nodes' own widgets on the canvas: uploads by drop, Prepare Image's fields and line, the toy's button,
// Quantize's report, templates.

import assert from "node:assert/strict";
import { settle } from "./canvas.mjs";
import { clearGraph, eventually, inBothRenderers } from "./editor.mjs";

const PACK_TITLE = "LingBot-World";

/** An .npy of `count` standing cameras. */
function standing(count) {
  const text = `{'descr': '<f4', 'fortran_order': False, 'shape': (${count}, 4, 4), }`;
  const header = text.padEnd(117) + "\n";
  const eye = Array.from({ length: 16 }, (_, i) => (i % 5 === 0 ? 1 : 0));
  const body = new Float32Array(Array.from({ length: count }, () => eye).flat());
  return Buffer.concat([Buffer.from([0x93, ...Buffer.from("NUMPY"), 1, 0, 118, 0]), Buffer.from(header), Buffer.from(body.buffer)]);
}

/** Adds a node at a place of an otherwise empty graph; returns nothing: the page has it as window.node. */
const addNode = (page, type) => clearGraph(page).then(() => page.evaluate((id) => {
  const { app, LiteGraph } = window;
  const node = LiteGraph.createNode(id);
  node.pos = [200, 120];
  app.graph.add(node);
  Object.assign(app.canvas.ds, { scale: 1, offset: [0, 0] });
  app.graph.setDirtyCanvas(true, true);
  window.node = node;
}, type));

const value = (page, name) => page.evaluate((wanted) => window.node.widgets.find((one) => one.name === wanted).value, name);

/** Drops files on the middle of the node's title. @param {Array<[string, Buffer]>} files */
async function drop(page, files) {
  await page.evaluate(async (wanted) => {
    const transfer = new DataTransfer(), [x, y] = [260, 105], target = document.elementFromPoint(x, y);
    for (const [name, text] of wanted) {
      transfer.items.add(new File([Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))], name));
    }
    for (const type of ["dragenter", "dragover", "drop"]) {
      const place = { clientX: x, clientY: y, bubbles: true, cancelable: true, dataTransfer: transfer };
      target.dispatchEvent(new DragEvent(type, place));
      await new Promise((resolve) => { setTimeout(resolve, 150); });
    }
  }, files.map(([name, data]) => [name, data.toString("base64")]));
}

inBothRenderers((it, vue) => {
  it("a dropped pose file is uploaded, chosen and never overwritten", async (page) => {
    await addNode(page, "LingBotWorldLoadPoses");
    await settle(page);
    await drop(page, [["walk.npy", standing(9)]]);
    await eventually(async () => assert.match(await value(page, "poses"), /^camera\/walk-[0-9a-f]{8}\/walk\.npy$/));
    const first = await value(page, "poses");
    await drop(page, [["walk.npy", standing(13)]]);
    await eventually(async () => assert.notEqual(await value(page, "poses"), first));
    const choices = await page.evaluate(() => window.node.widgets[0].options.values);
    assert.ok(choices.includes(first) && choices.includes(await value(page, "poses")));
    const buttons = await page.evaluate(() => window.node.widgets.filter((one) => one.type === "button").map((one) => one.name));
    assert.deepEqual(buttons, ["choose files to upload"]);
  });

  it("what is no camera path is refused in words", async (page) => {
    await addNode(page, "LingBotWorldCameraImport");
    await settle(page);
    const before = await value(page, "file");
    await drop(page, [["notes.json", Buffer.from("{}")]]);
    await page.getByText("none of these files is a camera path").first().waitFor();
    assert.equal(await value(page, "file"), before);
  });

  it.both("Prepare Image shows the fields that count, and what becomes of the picture", async (page) => {
    await addNode(page, "LingBotWorldPrepareImage");
    await page.evaluate(() => {
      const load = window.LiteGraph.createNode("LoadImage");
      window.app.graph.add(load);
      load.pos = [200, 500];
      load.widgets[0].value = "example.png";
      load.connect(0, window.node, 0);
    });
    const shown = () => page.evaluate(() => window.node.widgets.filter((one) => !one.hidden).map((one) => one.name));
    const line = page.locator(".lbw-story:visible"), set = (size) => page.evaluate((text) => { window.node.widgets[0].value = text; }, size);
    await eventually(async () => assert.equal(await line.textContent(), "832x480 becomes 832x464, stretched 3 % wider"));
    assert.deepEqual(await shown(), ["size", "fit", "will be"]);
    await set("1:1 (624x624)");
    await eventually(async () => assert.equal(await line.textContent(), "832x480 becomes 624x624, stretched 73 % taller"));
    await set("width and height");
    await eventually(async () => assert.deepEqual(await shown(), ["size", "width", "height", "fit", "will be"]));
    if (vue) await page.getByText("height", { exact: true }).first().waitFor();
    await set("480*832"); // as earlier workflows have it
    await eventually(async () => assert.equal(await value(page, "size"), "832x480, in the image's shape"));
    await page.evaluate(() => { // a node that makes another picture of the file's
      const [, load] = window.app.graph.nodes, scale = window.LiteGraph.createNode("ImageScale");
      window.app.graph.add(scale);
      window.scale = scale;
      load.connect(0, scale, 0);
      scale.connect(0, window.node, 0);
    });
    await eventually(async () => assert.match(await line.textContent(), /^the size is known once the image is/));
    await page.evaluate(() => { window.scale.mode = 4; }); // bypassed
    await eventually(async () => assert.match(await line.textContent(), /^832x480 becomes 832x464/));
    await set("width and height");
    await page.evaluate(() => {
      const { app, LiteGraph, node } = window, width = LiteGraph.createNode("PrimitiveInt");
      app.graph.add(width);
      width.widgets[0].value = 320;
      width.connect(0, node, node.inputs.findIndex(({ name }) => name === "width"));
    });
    await eventually(async () => assert.match(await line.textContent(), /^832x480 becomes 320x/));
    await page.evaluate(() => { window.app.graph.convertToSubgraph(new Set([window.node])); });
    await page.waitForTimeout(1000); // in which what ComfyUI leaves of the copying looks at its fields
  });

  it("the toy's button makes the package", async (page) => {
    await addNode(page, "LingBotWorldToyPackage");
    await page.evaluate(() => window.node.widgets.find((one) => one.type === "button").callback());
    await page.getByText(/^(Made|Ready)/).first().waitFor();
  });

  it("a run of the workflow says nothing of a toy that is ready", async (page) => {
    await addNode(page, "LingBotWorldToyPackage");
    const told = await page.evaluate(async () => {
      const { app, node } = window, { toast } = app.extensionManager, { add } = toast, told = [];
      toast.add = (message) => { told.push(message.detail); add.call(toast, message); };
      node.onExecuted({ text: ["Made it"] });
      node.onExecuted({ text: ["Ready: it"] });
      toast.add = add;
      return told;
    });
    assert.deepEqual(told.filter((words) => /it$/.test(words)), ["Made it"]);
  });

  it("a template on the toy has no red node once the toy is made", async (page) => {
    await clearGraph(page);
    const red = await page.evaluate(async () => {
      const { app, LiteGraph } = window, causal = LiteGraph.createNode("LingBotWorldLoadCausal"), toy = LiteGraph.createNode("LingBotWorldToyPackage");
      for (const each of [causal, toy]) app.graph.add(each);
      causal.widgets[0].value = "toy/lingbot_world_fast/absent.safetensors";
      const graph = app.graph.serialize();
      await app.loadGraphData(graph, true, true, "toy");
      const marks = () => app.graph.nodes.filter((node) => node.has_errors).map(({ type }) => type), find = (type) => app.graph.nodes.find((node) => node.type === type);
      for (let tries = 0; tries < 100 && !marks().length; tries += 1) await new Promise((resolve) => { setTimeout(resolve, 100); });
      const before = marks();
      find("LingBotWorldToyPackage").widgets.find(({ name }) => name === "Use the toy").callback();
      for (let tries = 0; tries < 100 && marks().length; tries += 1) await new Promise((resolve) => { setTimeout(resolve, 100); });
      return [before, marks()];
    });
    assert.deepEqual(red, [["LingBotWorldLoadCausal"], []]);
  });

  it("the toy is chosen in every loader of the open workflow", async (page) => {
    await addNode(page, "LingBotWorldToyPackage");
    const chosen = await page.evaluate(() => {
      const { app, LiteGraph } = window, types = ["LingBotWorldLoadExperts", "LingBotWorldLoadVAE", "LingBotWorldTextEncode", "LingBotWorldLoadCausal"];
      const loaders = types.map((type) => LiteGraph.createNode(type));
      for (const loader of loaders) {
        app.graph.add(loader);
        loader.widgets[0].value = "another";
      }
      window.node.widgets.find(({ name }) => name === "Use the toy").callback();
      return loaders.map(({ widgets }) => widgets[0].value);
    });
    assert.deepEqual(chosen, ["toy", "toy/Wan2.1_VAE.pth", "toy/models_t5_umt5-xxl-enc-bf16.pth", "toy/lingbot_world_fast"]);
  });

  it("the toy's size, frames, window, prompt and image are set too, and LoRAs are bypassed", async (page) => {
    await addNode(page, "LingBotWorldToyPackage");
    const read = () => page.evaluate(() => {
      const { app, LiteGraph } = window, make = (type) => app.graph.add(LiteGraph.createNode(type)) ?? app.graph.nodes.at(-1);
      const field = (node, name) => node.widgets.find((each) => each.name === name);
      const image = make("LoadImage"), prepared = make("LingBotWorldPrepareImage"), preset = make("LingBotWorldCameraPreset");
      const editor = make("LingBotWorldCameraEditor"), rollout = make("LingBotWorldRollout"), lora = make("LoraLoaderModelOnly");
      const text = make("LingBotWorldTextEncode");
      image.widgets[0].value = "example.png";
      image.connect(0, prepared, 0);
      field(preset, "frames").value = 161;
      const press = () => window.node.widgets.find(({ name }) => name === "Use the toy").callback();
      press();
      const walked = field(preset, "frames").value;
      make("LingBotWorldLoadExperts");
      press();
      const state = JSON.parse(field(editor, "path").value), from = app.graph.getLink(prepared.inputs[0].link).origin_id;
      return [
        ["size", "width", "height"].map((name) => field(prepared, name).value), [walked, field(preset, "frames").value],
        [state.frames, state.keyframes.at(-1).frame], ["window", "sink", "chunk"].map((name) => field(rollout, name).value),
        field(text, "prompt").value, from === window.node.id, lora.mode,
      ];
    });
    assert.deepEqual(await read(), [
      ["width and height", 256, 144], [97, 33], [33, 32], [18, 6, "1"], "a maze with red and blue walls by day", true, 4,
    ]);
  });

  it("our text encoder's loader takes the place of core's", async (page) => {
    await addNode(page, "LingBotWorldToyPackage");
    const kinds = await page.evaluate(() => {
      const { app, LiteGraph } = window, make = (type) => app.graph.add(LiteGraph.createNode(type)) ?? app.graph.nodes.at(-1);
      const clip = make("CLIPLoader"), texts = [make("CLIPTextEncode"), make("CLIPTextEncode")];
      for (const text of texts) clip.connect(0, text, 0);
      window.node.widgets.find(({ name }) => name === "Use the toy").callback();
      const before = (text) => app.graph.getNodeById(app.graph.getLink(text.inputs[0].link).origin_id);
      return texts.map((text) => [before(text).type, before(text).widgets[0].value]);
    });
    assert.deepEqual(kinds, Array(2).fill(["LingBotWorldLoadTextEncoder", "toy/models_t5_umt5-xxl-enc-bf16.pth"]));
  });

  it("Quantize runs alone from its button, though it sleeps", async (page) => {
    await addNode(page, "LingBotWorldQuantize");
    const sent = page.waitForRequest((request) => request.url().endsWith("/prompt") && request.method() === "POST");
    await page.evaluate(() => {
      window.node.mode = 2;
      window.node.widgets.find(({ name }) => name === "name").value = "../refused";
      window.node.widgets.find(({ name }) => name === "Quantize now").callback();
    });
    const { prompt } = (await sent).postDataJSON();
    assert.deepEqual(Object.values(prompt).map((node) => node.class_type), ["LingBotWorldQuantize"]);
    await eventually(async () => assert.equal(await page.evaluate(() => window.node.mode), 2));
  });

  it("Quantize shows on the node what it made", async (page) => {
    await addNode(page, "LingBotWorldQuantize");
    await page.evaluate((name) => {
      const widget = (wanted) => window.node.widgets.find((one) => one.name === wanted);
      widget("source").value = "toy/models_t5_umt5-xxl-enc-bf16.pth";
      widget("name").value = name;
      window.app.queuePrompt(0, 1, [String(window.node.id)]);
    }, `zz-${vue ? "vue" : "classic"}-${Date.now()}`);
    await page.getByText(/zz-.* is ready\. Press R/).first().waitFor();
  });

  it("templates come under the pack's name, in the order of their numbers", async (page) => {
    const names = await page.evaluate(async () => Object.values(await window.app.api.getWorkflowTemplates()).flat());
    const ours = names.filter((name) => /^\d\d /.test(name));
    assert.ok(ours.length > 5);
    assert.deepEqual(ours, [...ours].sort());
    const { en } = await page.evaluate(async () => (await window.app.api.fetchApi("/i18n")).json());
    assert.equal(en.templateWorkflows.category["lingbot-world-comfyui"], PACK_TITLE);
  });
});
