import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";
import { save } from "../../web/live/save.mjs";

let saved; // names and contents

beforeEach(() => {
  saved = [];
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout"] }); // the address is given back later
  let blob;
  globalThis.URL.createObjectURL = (given) => { blob = given; return "blob:walk"; };
  globalThis.document = { createElement: () => ({ click() { saved.push([this.download, blob]); } }) };
});

const answer = (body, init) => { globalThis.fetch = async () => new Response(body, init); };

test("what the server answers is saved under its name", async () => {
  answer("abc", { headers: { "Content-Disposition": 'attachment; filename="walk.mp4"' } });
  await save("walk/video");
  const [[name, blob]] = saved;
  assert.equal(name, "walk.mp4");
  assert.equal(await blob.text(), "abc");
});

test("an error of the server is said in its words, and nothing is saved", async () => {
  answer("nothing was walked yet\n", { status: 404 });
  await assert.rejects(save("walk/state"), { message: "nothing was walked yet" });
  answer("", { status: 500 });
  await assert.rejects(save("walk/state"), { message: "the server answers 500" });
  globalThis.fetch = () => Promise.reject(new TypeError("Failed to fetch"));
  await assert.rejects(save("walk/state"), { message: "the server cannot be reached" });
  assert.deepEqual(saved, []);
});

test("a connection that breaks in the middle of a file saves none of it", async () => {
  const body = new ReadableStream({ pull(stream) { stream.error(new TypeError("network error")); } });
  answer(body, {});
  await assert.rejects(save("walk/video"), { message: "the connection is lost" });
  assert.deepEqual(saved, []);
});
