// What stands on the nodes' fields: labels in words, and file names of which the two experts read differently.

import assert from "node:assert/strict";
import { settle } from "./canvas.mjs";
import { clearGraph, eventually, inBothRenderers } from "./editor.mjs";

const PACKAGE = "lingbot-world-base-cam-nf4";
const LEVELS = ["high", "low"];
const WIDTH = 340; // of the node in the shipped workflows

/** Adds the experts' loader, with two files chosen, to an otherwise empty graph; `isThere`: the server has the files. */
const addLoader = (page, isThere) => clearGraph(page).then(() => page.evaluate(([levels, folder, width, areThere]) => {
  const { app, LiteGraph } = window;
  const node = LiteGraph.createNode("LingBotWorldLoadExperts");
  node.pos = [200, 120];
  app.graph.add(node);
  for (const level of levels) {
    const widget = node.widgets.find(({ name }) => name === `${level}_noise_expert`);
    widget.value = `${folder}/${level}_noise_model_bnb_nf4/model.safetensors`;
    if (areThere) widget.options.values = [...widget.options.values, ...levels.map((each) => `${folder}/${each}_noise_model_bnb_nf4/model.safetensors`)];
  }
  node.setSize([width, node.size[1]]);
  Object.assign(app.canvas.ds, { scale: 1, offset: [0, 0] });
  app.graph.setDirtyCanvas(true, true);
}, [LEVELS, PACKAGE, WIDTH, isThere]));

/** Every text that the classic renderer draws in the next frames. */
const drawnTexts = (page) => page.evaluate(async () => {
  const { prototype } = CanvasRenderingContext2D, { fillText } = prototype, texts = new Set();
  prototype.fillText = function (text, ...place) {
    texts.add(String(text));
    return fillText.call(this, text, ...place);
  };
  window.app.graph.setDirtyCanvas(true, true);
  for (let i = 0; i < 6; i += 1) await new Promise(requestAnimationFrame);
  prototype.fillText = fillText;
  return [...texts];
});

/** Every text of the node in Nodes 2.0, each as far as it is not cut off. */
const seenTexts = (page) => page.evaluate(() => {
  const walker = document.createTreeWalker(document.querySelector("[data-node-id]"), NodeFilter.SHOW_TEXT), texts = [];
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const right = text.parentElement.getBoundingClientRect().right, range = document.createRange();
    let end = text.length;
    for (range.selectNodeContents(text); end > 0 && range.getBoundingClientRect().right > right + 1; end -= 1) range.setEnd(text, end - 1);
    texts.push(text.data.slice(0, end));
  }
  return texts;
});

inBothRenderers((it, vue) => {
  it.both("the two experts' files read differently, and what is queued is their whole names", async (page) => {
    await eventually(async () => {
      await addLoader(page, true); // anew, as lists that the server sends late replace the node's
      await settle(page);
      const texts = vue ? await seenTexts(page) : await drawnTexts(page);
      for (const level of LEVELS) {
        assert.ok(texts.some((text) => text.startsWith(`ling\u2026nf4/${level}`)), `${level} in ${JSON.stringify(texts)}`);
      }
    });
    const { inputs } = (await page.evaluate(async () => Object.values((await window.app.graphToPrompt()).output)))[0];
    for (const level of LEVELS) assert.equal(inputs[`${level}_noise_expert`], `${PACKAGE}/${level}_noise_model_bnb_nf4/model.safetensors`);
  });

  it.both("files that are missing read differently too", async (page) => {
    await addLoader(page, false);
    await settle(page);
    await eventually(async () => {
      const texts = (vue ? await seenTexts(page) : await drawnTexts(page)).filter((text) => text.startsWith("ling"));
      for (const level of LEVELS) assert.ok(texts.some((text) => text.includes(`nf4/${level}`)), JSON.stringify(texts));
    });
  });

  it.both("the experts' labels are words on the screen", async (page) => {
    await addLoader(page, false);
    await settle(page);
    await eventually(async () => {
      const texts = vue ? await seenTexts(page) : await drawnTexts(page);
      for (const level of LEVELS) assert.ok(texts.includes(`${level} expert`), JSON.stringify(texts));
      assert.deepEqual(texts.filter((text) => /^[a-z]+_[a-z_]+$/.test(text)), []);
    });
  });

  it.both("no field or socket of any of the nodes is labelled by its id", async (page) => {
    const labels = await page.evaluate(() => {
      const { LiteGraph } = window, types = Object.keys(LiteGraph.registered_node_types).filter((type) => type.startsWith("LingBotWorld"));
      return types.flatMap((type) => {
        const node = LiteGraph.createNode(type), slots = node.inputs?.filter((input) => !input.widget) ?? [];
        const parts = [...node.widgets ?? [], ...slots, ...node.outputs ?? []];
        return parts.map((part) => `${type}: ${part.label ?? part.localized_name ?? part.name}`);
      });
    });
    assert.ok(labels.length > 100);
    assert.deepEqual(labels.filter((label) => /_/.test(label)), []);
  });

  it("every asset of the pack comes from an address with the pack's version", async (page) => {
    const names = await page.evaluate(() => performance.getEntriesByType("resource").map(({ name }) => name));
    const ours = names.filter((name) => /\/extensions\/lingbot/.test(name) && !name.includes("/docs/"));
    assert.ok(ours.some((name) => name.endsWith("/js/extension.js")) && ours.some((name) => name.endsWith(".mjs")));
    assert.deepEqual(ours.filter((name) => !/\/extensions\/[^/]+@\d+\.\d+\.\d+[^/]*\//.test(name)), []);
  });
});
