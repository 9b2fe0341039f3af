import assert from "node:assert/strict";
import test from "node:test";
import { Quality } from "../../web/live/quality.mjs";

/** What is asked for, by the second, of a walk in which so many frames are left out in each second. */
function asked(quality, lost, paused = false) {
  const told = [];
  lost.forEach((frames, second) => {
    quality.sum = (quality.sum ?? 0) + frames;
    const output = quality.judge({ dropped: quality.sum, paused });
    if (output) told.push([second, output.realtime_output_format, output.output_compression, output.realtime_preview_max_width]);
  });
  return told;
}

const seconds = (count, frames = 0) => Array(count).fill(frames);

test("frames that all arrive are sent as at first, for as long as they do", () => {
  assert.deepEqual(asked(new Quality("jpeg", 88, true, 832), seconds(600)), []);
});

test("what does not arrive is sent smaller step by step, to a quarter of the width, and no step is taken before the last one tells", () => {
  assert.deepEqual(asked(new Quality("jpeg", 88, false, 832), seconds(40, 8)), [
    [0, "jpeg", 70, 0], [4, "jpeg", 60, 499], [8, "jpeg", 50, 333], [12, "jpeg", 50, 208],
  ]);
});

test("H.264 takes the place of pictures where the browser plays it", () => {
  const names = asked(new Quality("jpeg", 88, true, 832), seconds(40, 8)).map(([, name]) => name);
  assert.deepEqual(names, ["h264", "h264", "h264", "h264"]);
  assert.ok(asked(new Quality("h264", 80, true, 832), seconds(9, 8)).every(([, name]) => name === "h264"));
});

test("a batch that is left out now and then changes nothing, and a trickle does", () => {
  const now_and_then = Array.from({ length: 300 }, (_, second) => (second % 5 ? 0 : 4));
  assert.deepEqual(asked(new Quality("jpeg", 88, true, 832), now_and_then), []);
  assert.deepEqual(asked(new Quality("jpeg", 88, true, 832), seconds(3, 4)).length, 1);
});

test("when all arrives again it is sent as at first again, step by step", () => {
  const quality = new Quality("jpeg", 88, false, 832);
  asked(quality, seconds(6, 8));
  assert.equal(quality.level, 2);
  assert.deepEqual(asked(quality, seconds(60)), [[11, "jpeg", 70, 0], [24, "jpeg", 88, 0]]);
});

test("where more is too much each time, it is tried ever less often, and a network that mends is noticed", () => {
  const quality = new Quality("jpeg", 88, false, 832), tries = [];
  let ups = 0;
  for (let second = 0; second < 1000; second++) {
    const before = quality.level;
    asked(quality, [quality.level === 0 ? 8 : 0]); // it carries level 1, and no more
    assert.ok(quality.level <= 1);
    if (quality.level < before) { ups += 1; tries.push(second); }
  }
  const waits = tries.slice(1).map((at, index) => at - tries[index]);
  assert.ok(ups >= 5 && ups <= 10, `${ups} tries`);
  assert.ok(waits.every((wait, index) => index === 0 || wait >= waits[index - 1]), waits);
  assert.ok(waits.at(-1) >= 160, waits);
  asked(quality, seconds(200));
  assert.equal(quality.level, 0);
});

test("a pause tells nothing of the network", () => {
  const quality = new Quality("jpeg", 88, false, 832);
  asked(quality, seconds(1, 8));
  assert.deepEqual(asked(quality, seconds(100), true), []);
  assert.equal(quality.level, 1);
});

test("the count of a new connection begins at nothing", () => {
  const quality = new Quality("jpeg", 88, false, 832);
  quality.judge({ dropped: 0, paused: false });
  quality.judge({ dropped: 400, paused: false });
  assert.equal(quality.level, 1);
  const again = new Quality("jpeg", 88, false, 832);
  again.judge({ dropped: 8, paused: false });
  assert.equal(again.level, 1);
});

test("a small walk's pictures get no smaller than can be seen", () => {
  const widths = asked(new Quality("jpeg", 88, false, 256), seconds(40, 8)).map(([, , , width]) => width);
  assert.deepEqual(widths, [0, 160, 160, 160]);
});
