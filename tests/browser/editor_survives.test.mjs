// What is drawn outlives a refresh of the page, saving, copies, the graph's undo, subgraphs and a second editor.

import assert from "node:assert/strict";
import { ready, settle } from "./canvas.mjs";
import { addEditorNode, drag, EDITOR, editorInBothRenderers, eventually, graphState, middle, moveEnd, NODE, pointIn,
  queuedKeyframes, savedState, shown } from "./editor.mjs";

/** Position of the last keyframe as the editor's own fields show it. */
async function shownEnd(page, editor) {
  await editor.focus();
  await page.keyboard.press("End");
  await settle(page);
  return Promise.all(["x: right", "y: down", "z: forward"].map(async (axis) =>
    shown(editor, `Position ${axis}`)));
}

const rounded = (position) => position.map((value) => Number(value.toFixed(3)));

/** Shows another graph (the root, or a subgraph) with its first editor in view. */
const enter = (page, inner) => page.evaluate(([type, down]) => {
  const { canvas, rootGraph } = window.app, graph = down ? [...rootGraph.subgraphs.values()][0] : rootGraph;
  canvas.setGraph(graph);
  const node = graph.nodes.find((candidate) => candidate.type === type);
  if (node) node.pos = [80, 80];
  Object.assign(canvas.ds, { scale: 1, offset: [0, 0] });
  canvas.setDirty(true, true);
}, [NODE, inner]);

editorInBothRenderers((it) => {
  it("a refresh of the page", async (page, editor) => {
    await moveEnd(page, editor);
    const moved = await savedState(page);
    const end = `[${moved.keyframes[1].position}]`; // in the draft that the front-end stores a while after a change
    await page.waitForFunction((part) => Object.values(localStorage).some((draft) => draft.includes(part)), end);
    await page.reload();
    await ready(page, NODE);
    const again = page.locator(EDITOR).first();
    await again.waitFor();
    await settle(page);
    assert.deepEqual(await savedState(page), moved);
    assert.deepEqual(await shownEnd(page, again), rounded(moved.keyframes[1].position));
    assert.deepEqual(await queuedKeyframes(page), [moved.keyframes]);
  });
}, { "Comfy.Workflow.Persist": true });

editorInBothRenderers((it) => {
  it("saving and loading the workflow", async (page, editor) => {
    await moveEnd(page, editor);
    const moved = await savedState(page);
    const file = await page.evaluate(() => JSON.stringify(window.app.graph.serialize()));
    await moveEnd(page, editor, 0.2);
    await page.setInputFiles("#comfy-file-input", { name: "saved.json", mimeType: "application/json", buffer: Buffer.from(file) });
    await eventually(async () => assert.deepEqual(await savedState(page), moved));
    assert.deepEqual(await shownEnd(page, page.locator(EDITOR).first()), rounded(moved.keyframes[1].position));
  });

  it("a copy of the node, which then goes its own way", async (page, editor) => {
    await moveEnd(page, editor);
    const moved = await savedState(page);
    await page.evaluate(() => window.app.canvas.selectItems([window.app.graph.nodes[0]]));
    await page.evaluate(() => document.activeElement.blur());
    await page.keyboard.press("Control+c");
    await page.mouse.move(700, 300);
    await page.keyboard.press("Control+v");
    await page.waitForFunction(() => window.app.graph.nodes.length === 2);
    await settle(page);
    assert.deepEqual(await savedState(page, 1), moved);
    const copy = page.locator(EDITOR).nth(1);
    assert.deepEqual(await shownEnd(page, copy), rounded(moved.keyframes[1].position));
    await page.keyboard.press("Shift+ArrowLeft");
    await page.keyboard.press("Enter");
    assert.deepEqual((await queuedKeyframes(page)).map((keyframes) => keyframes.length).sort(), [2, 3]);
    assert.deepEqual(await savedState(page), moved);
    await page.evaluate(() => localStorage.removeItem("litegrapheditor_clipboard")); // ComfyUI pastes it later otherwise
  });

  it.both("the graph's undo and redo, of an edit and of the whole node", async (page, editor) => {
    const start = await savedState(page);
    await moveEnd(page, editor);
    const moved = await savedState(page), press = async (key) => {
      await page.keyboard.press(key);
      await settle(page);
    };
    await page.mouse.click(1000, 500);
    await press("Control+z");
    await eventually(async () => assert.deepEqual(await savedState(page), start));
    await press("Control+y");
    await eventually(async () => assert.deepEqual(await savedState(page), moved));
    await page.evaluate(() => window.app.canvas.selectItems([window.app.graph.nodes[0]]));
    await press("Delete");
    assert.equal((await graphState(page)).count, 0);
    await press("Control+z");
    await eventually(async () => assert.deepEqual(await savedState(page), moved));
    assert.deepEqual(await shownEnd(page, page.locator(EDITOR).first()), rounded(moved.keyframes[1].position));
  });

  it("a subgraph, inside which it can be edited", async (page, editor) => {
    await moveEnd(page, editor);
    const { keyframes } = await savedState(page);
    await page.evaluate(() => { window.app.graph.convertToSubgraph(new Set([window.app.graph.nodes[0]])); });
    await settle(page);
    assert.deepEqual(await queuedKeyframes(page), [keyframes]);
    await enter(page, true);
    const inner = page.locator(EDITOR).first();
    await inner.waitFor();
    await settle(page);
    assert.deepEqual(await shownEnd(page, inner), rounded(keyframes[1].position));
    await page.keyboard.press("Shift+ArrowLeft");
    await page.keyboard.press("Enter");
    await settle(page);
    const edited = (await savedState(page)).keyframes;
    assert.equal(edited.length, 3);
    await enter(page, false);
    await settle(page);
    assert.deepEqual(await queuedKeyframes(page), [edited]);
  });

  it("a second editor beside it: edits, undo and views of one leave the other alone", async (page, editor) => {
    const second = await addEditorNode(page, [600, 80]), start = await savedState(page, 1);
    const picture = (one) => one.locator("[data-view=world]").evaluate((canvas) => canvas.toDataURL());
    await moveEnd(page, editor, 0.5);
    await moveEnd(page, second, -0.5);
    const ends = async () => Promise.all([0, 1].map(async (i) => Math.sign((await savedState(page, i)).keyframes[1].position[0])));
    assert.deepEqual(await ends(), [1, -1]);
    const still = await picture(editor), [x, y] = await middle(second.locator("[data-view=world]"));
    await drag(page, [x + 100, y + 60], [x, y + 30]);
    await settle(page);
    assert.equal(await picture(editor), still);
    await page.keyboard.press("Control+z");
    await settle(page);
    assert.deepEqual([await ends(), await savedState(page, 1)], [[1, 0], start]);
    await drag(page, await pointIn(editor, "side", [0, 0, 0]), await pointIn(editor, "side", [0, -0.5, 0]));
    assert.deepEqual(await savedState(page, 1), start);
    assert.equal((await queuedKeyframes(page)).length, 2);
  });
});
