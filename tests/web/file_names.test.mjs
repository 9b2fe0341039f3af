import assert from "node:assert/strict";
import { test } from "node:test";
import { labelAmong, shortened } from "../../web/js/comfy/file_names.js";

const HIGH = "lingbot-world-base-cam-nf4/high_noise_model_bnb_nf4/model.safetensors";
const LOW = HIGH.replace("high", "low");

test("the two experts of a package differ in the letters that a field shows", () => {
  assert.equal(shortened(HIGH), "ling\u2026nf4/high\u2026nf4/mode\u2026ors");
  assert.notEqual(shortened(HIGH).slice(0, 20), shortened(LOW).slice(0, 20));
});

test("short names and choices that are no files stay as they are", () => {
  for (const name of ["from the package", "toy/Wan2.1_VAE.pth", "none (choose both experts)", "", "16:9 (832x480)"]) {
    assert.equal(shortened(name), name);
  }
  const sentence = "none (see the tooltip of this field)";
  assert.equal(shortened(sentence), sentence);
});

test("a file keeps its beginning and its end", () => {
  assert.equal(shortened("lingbot-world-base-cam-nf4/models_t5_umt5-xxl-enc-bf16.pth"), "ling\u2026nf4/models_\u202616.pth");
});

test("names that would read alike keep more letters, or all of them", () => {
  const alike = HIGH.replace("base", "bxse"), other = HIGH.replace("base-cam", "fast");
  assert.equal(labelAmong(HIGH, [HIGH, alike]), HIGH);
  assert.equal(labelAmong(HIGH, [HIGH, other]), "lingbot\u2026am-nf4/high_no\u2026nb_nf4/model.s\u2026ensors");
  assert.equal(labelAmong(HIGH, [HIGH, LOW]), shortened(HIGH));
});
