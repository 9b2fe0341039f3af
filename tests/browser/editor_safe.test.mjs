// Nothing is lost or spoilt by accident: flights begin when asked to, recordings ask, fields refuse what the server would.

import assert from "node:assert/strict";
import { settle } from "./canvas.mjs";
import { drag, editorInBothRenderers, eventually, middle, near, playhead, pointIn, savedState, setText,
  shown } from "./editor.mjs";

const status = (editor) => editor.locator(".lbw-status").textContent();
const pitchOf = ([x, y, z, w]) => (Math.asin(2 * (w * x - y * z)) * 180) / Math.PI;

/** Types into a field, as a user who then presses Enter. */
async function type(page, editor, label, text) {
  await editor.getByLabel(label).fill(text);
  await page.keyboard.press("Enter");
  await settle(page);
}

/** Flies ahead until the recording has come to a frame. A playhead that is still shown far behind it, where it stood
before, does not count. */
async function flyAhead(page, editor, frame) {
  await page.keyboard.down("w");
  await eventually(async () => {
    const shown = await playhead(editor);
    assert.ok(shown >= frame && shown < frame + 70, `${shown}`);
  });
  await page.keyboard.up("w");
  await page.keyboard.press("Escape");
  await settle(page);
}

editorInBothRenderers((it) => {
  it("says what the engine warns of as the path is edited, and nothing of a path that is fine", async (page, editor) => {
    const lens = editor.getByRole("spinbutton", { name: /^Horizontal field of view/ }), line = editor.locator(".lbw-warnings");
    await eventually(async () => assert.ok(await line.isHidden()));
    await lens.fill("165");
    await lens.press("Enter");
    await line.getByText("The field of view is 165 degrees").waitFor();
    await lens.fill("79");
    await lens.press("Enter");
    await line.waitFor({ state: "hidden" });
  });

  it("begins no flight when dragged while looking through the camera", async (page, editor) => {
    const start = await savedState(page), [x, y] = await middle(editor.locator("[data-view=world]"));
    await editor.getByRole("button", { name: "Look through the camera" }).click();
    await drag(page, [x, y], [x + 80, y]);
    await settle(page);
    assert.equal(await editor.getByRole("button", { name: "Fly", exact: true }).getAttribute("aria-pressed"), "false");
    assert.match(await status(editor), /F flies/);
    assert.equal(await shown(editor, "Yaw"), 0);
    assert.deepEqual(await savedState(page), start);
  });

  it("asks before it records at the end, and appends", async (page, editor) => {
    const start = await savedState(page), ask = editor.getByRole("alertdialog");
    await editor.focus();
    await page.keyboard.press("End");
    await page.keyboard.press("r");
    await ask.waitFor();
    await page.keyboard.press("Escape");
    await ask.waitFor({ state: "hidden" });
    assert.deepEqual(await savedState(page), start);
    await page.keyboard.press("r");
    await page.keyboard.press("Enter"); // the first button: append
    await flyAhead(page, editor, 90);
    const { frames, keyframes } = await savedState(page);
    assert.ok(frames > 90 && frames % 4 === 1, `${frames} frames`);
    assert.deepEqual(keyframes.slice(0, 2).map((key) => [key.frame, key.position]), [[0, [0, 0, 0]], [80, [0, 0, 2]]]);
    assert.ok(keyframes.at(-1).position[2] > 2.3 && keyframes.at(-1).frame < frames);
    await page.keyboard.press("Control+z");
    assert.deepEqual(await savedState(page), start);
  });

  it("records from the start when that is the answer", async (page, editor) => {
    await editor.focus();
    await page.keyboard.press("End");
    await page.keyboard.press("r");
    await editor.getByRole("button", { name: "Record from the start" }).click();
    await flyAhead(page, editor, 10);
    const { frames, keyframes } = await savedState(page);
    assert.deepEqual([frames, keyframes[0].frame, keyframes.at(-1).frame < 80], [81, 0, true]);
  });

  it("flies from the end without going to the start", async (page, editor) => {
    await editor.focus();
    await page.keyboard.press("End");
    await page.keyboard.press("f");
    await page.keyboard.press("Enter");
    await page.keyboard.press("Escape");
    assert.deepEqual((await savedState(page)).keyframes.map((key) => [key.frame, key.position[2]]), [[0, 0], [80, 2]]);
  });

  it("holds the pitch to 89 degrees", async (page, editor) => {
    for (const [typed, held] of [["120", 89], ["-95", -89], ["90", 89]]) {
      await type(page, editor, "Pitch", typed);
      assert.equal(Math.round(pitchOf((await savedState(page)).keyframes[0].quaternion)), held);
    }
    await type(page, editor, "Pitch", "0");
    await drag(page, await pointIn(editor, "side", [0, 0, 0.35]), await pointIn(editor, "side", [0, -1, 0]));
    const pitch = pitchOf((await savedState(page)).keyframes[0].quaternion);
    assert.ok(pitch > 80 && pitch <= 89.01, `${pitch}`);
  });

  it("refuses at the field what the server would refuse", async (page, editor) => {
    const start = await savedState(page);
    for (const [label, typed, words] of [
      ["Frames a second", "0", /Frames a second: expected a number/], ["Frames a second", "-3", /expected a number/],
      ["Horizontal field of view", "171", /from 1 to 170/], ["Length in frames", "4", /whole, from 5/],
      ["Length in frames", "80.5", /whole, from 5/], ["Position x: right", "1e12", /expected a number/],
    ]) {
      const field = editor.getByLabel(label), before = await field.inputValue();
      await type(page, editor, label, typed);
      assert.match(await status(editor), words);
      assert.equal(await field.getAttribute("aria-invalid"), "true", label);
      await field.blur();
      await settle(page);
      assert.deepEqual([await field.inputValue(), await field.getAttribute("aria-invalid")], [before, "false"]);
    }
    assert.deepEqual(await savedState(page), start);
  });

  it("keeps the value of a field that is cleared, without a complaint", async (page, editor) => {
    const start = await savedState(page);
    for (const label of ["Frames a second", "Horizontal field of view", "Length in frames", "Yaw", "Position x: right"]) {
      const before = await editor.getByLabel(label).inputValue();
      await type(page, editor, label, "");
      assert.deepEqual([await editor.getByLabel(label).inputValue(), await status(editor)], [before, ""], label);
    }
    assert.deepEqual(await savedState(page), start);
  });

  it("reads documents of any pitch", async (page, editor) => {
    const start = await savedState(page), steep = { ...start.keyframes[0], quaternion: [Math.SQRT1_2, 0, 0, Math.SQRT1_2] };
    await setText(page, JSON.stringify({ ...start, keyframes: [steep] }));
    near((await savedState(page)).keyframes[0].quaternion, steep.quaternion, 1e-5);
  });
});
