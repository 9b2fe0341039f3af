// Typing in the editor's fields: a value goes where it was meant, keys are the field's while someone types, commas count.

import assert from "node:assert/strict";
import { settle } from "./canvas.mjs";
import { editorInBothRenderers, moveEnd, pointOnTime, savedState } from "./editor.mjs";

const places = async (page) => (await savedState(page)).keyframes.map(({ position }) => Number(position[0].toFixed(2)));
const fieldX = (editor) => editor.getByLabel("Position x: right");

/** Types into a field over what is in it, key by key. */
async function typeOver(page, field, text) {
  await field.click();
  await page.keyboard.press("Control+a");
  await page.keyboard.type(text);
}

editorInBothRenderers((it) => {
  it("gives a typed value to its keyframe, though a click on the time line or a camera ends the typing", async (page, editor) => {
    await typeOver(page, fieldX(editor), "1");
    await page.mouse.click(...await pointOnTime(editor, 80));
    await settle(page);
    assert.deepEqual(await places(page), [1, 0]);
    assert.equal(await fieldX(editor).inputValue(), "0");
  });

  it("undoes the typing while someone types, the path's edits after that, and shows what came of it", async (page, editor) => {
    await moveEnd(page, editor);
    const field = fieldX(editor), moved = await field.inputValue();
    await typeOver(page, field, "7");
    await page.keyboard.press("Control+z");
    await settle(page);
    assert.deepEqual([await places(page), await field.inputValue()], [[0, 0.5], moved]);
    await typeOver(page, field, "7");
    await page.keyboard.press("Enter");
    await page.keyboard.press("Control+z");
    await settle(page);
    assert.deepEqual([await places(page), await field.inputValue()], [[0, 0.5], moved]);
    await page.keyboard.press("Control+z");
    await settle(page);
    assert.deepEqual([await places(page), await field.inputValue()], [[0, 0], "0"]);
  });

  it("has keyframes where they were after the length went down and up by arrow keys", async (page, editor) => {
    const frames = async () => (await savedState(page)).keyframes.map(({ frame }) => frame);
    for (const place of [30, 40]) {
      await page.mouse.click(...await pointOnTime(editor, place));
      await page.keyboard.press("Enter");
    }
    const before = await frames(), length = editor.getByLabel("Length in frames");
    assert.equal(before.length, 4);
    await typeOver(page, length, "9");
    await page.keyboard.press("Enter");
    await page.keyboard.press("ArrowDown");
    assert.equal((await frames()).length, 3, "two keyframes have met");
    await typeOver(page, length, "81");
    await page.keyboard.press("Enter");
    await settle(page);
    assert.deepEqual(await frames(), before);
    await page.keyboard.press("Control+z");
    await settle(page);
    assert.equal((await savedState(page)).frames, 5, "each length is a step to go back to");
  });

  it("takes a value that is being typed before it duplicates the keyframe", async (page, editor) => {
    await typeOver(page, fieldX(editor), "1");
    await page.keyboard.press("Control+d");
    await settle(page);
    assert.deepEqual(await places(page), [1, 1, 0]);
    await page.keyboard.press("Control+z"); // the field still has the focus
    await settle(page);
    assert.deepEqual(await places(page), [1, 0]);
  });

  it("queues the path with a value that is being typed", async (page, editor) => {
    await typeOver(page, fieldX(editor), "1");
    await page.evaluate(() => {
      const { queuePrompt } = window.app;
      window.app.queuePrompt = async () => {
        window.app.queuePrompt = queuePrompt;
        window.queued = await window.app.graphToPrompt();
      };
    });
    await page.keyboard.press("Control+Enter");
    await page.waitForFunction(() => window.queued);
    const [node] = await page.evaluate(() => Object.values(window.queued.output));
    assert.equal(JSON.parse(Object.values(node.inputs)[0]).keyframes[0].position[0], 1);
    await page.evaluate(() => { window.queued = null; });
  });

  it("leaves the path alone while a move's name is typed", async (page, editor) => {
    await moveEnd(page, editor);
    await page.keyboard.press("p");
    await editor.getByLabel("Name for this move").click();
    await page.keyboard.type("a");
    await page.keyboard.press("Control+z");
    await page.keyboard.press("Control+d");
    await settle(page);
    assert.deepEqual([await places(page), await editor.getByLabel("Name for this move").inputValue()], [[0, 0.5], ""]);
  });

  it("gives up a value at Escape", async (page, editor) => {
    for (const typed of ["1", "1e12"]) {
      await typeOver(page, fieldX(editor), typed);
      await page.keyboard.press("Escape");
      assert.equal(await fieldX(editor).inputValue(), "0");
      await page.keyboard.press("Tab");
      await settle(page);
      assert.deepEqual(await places(page), [0, 0]);
    }
  });

  it("takes a decimal comma, typed and pasted", async (page, editor) => {
    await typeOver(page, fieldX(editor), "-1,5");
    await page.keyboard.press("Enter");
    assert.deepEqual(await places(page), [-1.5, 0]);
    await page.evaluate(() => navigator.clipboard.writeText("0,25"));
    await fieldX(editor).click();
    await page.keyboard.press("Control+a");
    await page.keyboard.press("Control+v");
    await page.keyboard.press("Enter");
    assert.deepEqual(await places(page), [0.25, 0]);
  });

  it("draws a path whose frames last for days", async (page, editor) => {
    const field = editor.getByLabel("Frames a second"), start = Date.now();
    await typeOver(page, field, "0.000001");
    await page.keyboard.press("Enter");
    await editor.getByRole("button", { name: "Play", exact: true }).click();
    await settle(page);
    assert.equal((await savedState(page)).fps, 1e-6);
    assert.ok(Date.now() - start < 15000, "the page hung");
  });
});
