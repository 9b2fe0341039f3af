import assert from "node:assert/strict";
import test from "node:test";
import { showTranslations } from "../../web/js/comfy/labels.js";

function node(slot) {
  class Rollout { inputs = [slot]; }
  Rollout.nodeData = { input: { required: { start_image: ["IMAGE", { display_name: "start image" }], vae: ["VAE", {}] } } };
  return new Rollout();
}

for (const [what, slot, label] of [
  ["an English label gives way to a translation", { name: "start_image", label: "start image", localized_name: "開始画像" }, undefined],
  ["without a translation it stays", { name: "start_image", label: "start image", localized_name: "start_image" }, "start image"],
  ["a label of the user's stays", { name: "start_image", label: "my house", localized_name: "開始画像" }, "my house"],
  ["a socket without a label keeps none", { name: "vae", label: undefined, localized_name: "VAE" }, undefined],
]) {
  test(what, () => {
    showTranslations(node(slot));
    assert.equal(slot.label, label);
  });
}

test("a node that ComfyUI does not know has no labels to change", () => showTranslations({ constructor: {} }));
