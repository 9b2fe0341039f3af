import assert from "node:assert/strict";
import { test } from "node:test";
import { Clip } from "../../web/live/clip.mjs";

const FPS = 16, KEY = [0, 0, 1, 0x67], DELTA = [0, 0, 1, 0x41];

/** Keeps so many batches of four frames, of which every `keys`th begins with a key frame. */
function kept(batches, encoding, keys = 1) {
  const clip = new Clip();
  for (let number = 0; number < batches; number++) {
    const payload = new Uint8Array([...(number % keys ? DELTA : KEY), ...Array(12).fill(9)]);
    clip.keep({ chunk_index: number, num_frames: 4, encoding, payload_lengths: [7, 3, 3, 3] }, payload, FPS);
  }
  return clip;
}

const frames = ({ batches }) => batches.length * 4;

test("the last ten seconds are kept, and no more than is needed for them", () => {
  assert.equal(frames(kept(500, "jpeg")), 160);
  assert.equal(frames(kept(10, "jpeg")), 40);
});

test("H.264 is kept from a key frame on, however seldom there is one", () => {
  for (const keys of [16, 30]) {
    const clip = kept(500, "h264", keys);
    assert.equal(clip.batches[0].header.chunk_index % keys, 0);
    assert.ok(frames(clip) >= 160 && frames(clip) < 160 + 4 * keys, frames(clip));
  }
});

test("what the walk goes back on is in no clip", () => {
  const clip = kept(100, "jpeg");
  clip.cut(90);
  assert.equal(clip.batches.at(-1).header.chunk_index, 89);
});

test("a clip of nothing says so", () => assert.rejects(new Clip().save(), /nothing was walked/));
