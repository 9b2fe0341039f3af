import assert from "node:assert/strict";
import test from "node:test";
import { Steps } from "../../web/live/steps.mjs";

/** Sends a step back of so many chunks, and says where it goes. */
function back(steps, chunks) {
  const target = steps.before(chunks);
  steps.sent(target);
  return target;
}

test("steps that are sent before the first is seen go on from where it goes", () => {
  const steps = new Steps();
  steps.seen(30);
  assert.deepEqual([back(steps, 8), back(steps, 8)], [22, 14]);
  steps.done(22);
  steps.seen(22);
  assert.equal(back(steps, 8), 6);
  steps.done(14);
  steps.done(6);
  assert.equal(steps.before(2), 4);
});

test("after a step that is done, what is seen counts again", () => {
  const steps = new Steps();
  steps.seen(30);
  back(steps, 8);
  steps.done(22);
  steps.seen(40);
  assert.equal(steps.before(8), 32);
});

test("before the beginning there is nothing, after Restart neither", () => {
  const steps = new Steps();
  steps.seen(3);
  assert.equal(back(steps, 8), 0);
  steps.done(0);
  steps.seen(30);
  steps.sent(0); // Restart
  assert.equal(back(steps, 8), 0);
  steps.done(0);
  assert.equal(steps.before(8), 0, "chunks of the walk before count");
});

test("a step that cannot be done is not gone on from", () => {
  const steps = new Steps();
  steps.seen(30);
  back(steps, 8);
  steps.forget();
  assert.equal(steps.before(8), 22);
});
