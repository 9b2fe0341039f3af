import assert from "node:assert/strict";
import { test } from "node:test";
import { Turn, warp } from "../../web/live/turn.mjs";

const DISPLAY_MS = 1000 / 60, FRAME_MS = 1000 / 16, FASTEST = 6;

/** What is seen in each picture of the display while a server turns its camera `latency` milliseconds later, four
 * frames at a time, six degrees a frame at most. `ask(now)` is the turn since the last picture, in degrees. */
function watch({ ask, latency = 280, seconds = 4 }) {
  const turn = new Turn(), seen = [], asked = [];
  let yaw = 0, pool = 0, taken = 0, next = 0;
  const frames = [];
  turn.seen([0, 0, 0, 0, 0]);
  for (let now = 0; now < 1000 * seconds; now += DISPLAY_MS) {
    const more = ask(now);
    if (more) { asked.push({ at: now, more }); turn.ask([more, 0], now); }
    if (now >= next) { // a chunk is made of what was asked for
      next += 4 * FRAME_MS;
      for (; taken < asked.length; taken++) pool += asked[taken].more;
      for (let frame = 0; frame < 4; frame++) {
        const step = Math.max(-FASTEST, Math.min(FASTEST, pool));
        pool -= step;
        yaw += step;
        frames.push({ at: now + latency + frame * FRAME_MS, camera: [0, 0, 0, Math.round(100 * yaw), 0] });
      }
    }
    while (frames[0]?.at <= now) turn.seen(frames.shift().camera);
    turn.ease(now, DISPLAY_MS);
    seen.push({ at: now, yaw: turn.camera[0] + turn.offset[0], offset: turn.offset[0] });
  }
  return seen;
}

const jumps = (seen) => seen.slice(1).map(({ yaw }, index) => Math.abs(yaw - seen[index].yaw));
const once = (degrees, at = 500) => { let left = degrees; return (now) => { const now_ = now >= at ? left : 0; left -= now_; return now_; }; };

test("a turn is seen in the picture that follows, and stands when its frames have come", () => {
  for (const latency of [120, 280, 600]) {
    const seen = watch({ ask: once(10), latency });
    assert.ok(seen.find(({ at }) => at >= 500).yaw > 9.5, `${latency} ms`);
    assert.ok(Math.abs(seen.at(-1).yaw - 10) < 0.1 && Math.abs(seen.at(-1).offset) < 0.1, `${latency} ms: ${seen.at(-1).yaw}`);
  }
});

test("nothing jumps by more than two degrees when frames come, however the mouse moved", () => {
  const wild = (now) => (now < 2000 ? 1.2 * Math.sin(now / 150) : 0);
  for (const [what, ask] of Object.entries({ "a flick": once(18), "a half turn": once(180), "a wild mouse": wild })) {
    const seen = watch({ ask, seconds: 6 }), after = seen.filter(({ at }) => at > (what === "a wild mouse" ? 2000 : 560));
    const limit = what === "a half turn" ? FASTEST + 2 : 2; // its frames themselves turn by six degrees each
    assert.ok(Math.max(...jumps(after)) < limit, `${what}: ${Math.max(...jumps(after))}`);
    assert.ok(Math.abs(seen.at(-1).offset) < 0.1, what);
  }
});

test("a key that is held turns evenly from the first picture on, and ends without a jump", () => {
  const seen = watch({ ask: (now) => (now > 300 && now < 2300 ? (32 * DISPLAY_MS) / 1000 : 0), seconds: 6 });
  const during = seen.filter(({ at }) => at > 340 && at < 2300);
  assert.ok(Math.min(...jumps(during)) >= 0 && Math.max(...jumps(seen)) < 1.5, `${Math.max(...jumps(seen))}`);
  assert.ok(seen.find(({ at }) => at > 420).yaw > 2, "it does not turn at once");
  assert.ok(Math.abs(seen.at(-1).offset) < 0.1);
});

test("frames that turn over 180 degrees are no turn around", () => {
  const turn = new Turn();
  turn.seen([0, 0, 0, 17950, 0]);
  turn.seen([0, 0, 0, -17950, 0]);
  assert.ok(Math.abs(turn.offset[0] + 1) < 1e-9);
});

test("one looks no further up than the walk's camera does", () => {
  const turn = new Turn();
  turn.seen([0, 0, 0, 0, 8300]);
  turn.ask([0, 10], 0);
  assert.equal(turn.offset[1], 2);
});

test("without the camera of a frame nothing is turned", () => {
  const turn = new Turn();
  turn.seen(null);
  turn.ask([10, 0], 0);
  assert.equal(turn.homography([64, 64]), null);
});

/** A room as a camera sees it: red grows with the yaw of a direction, green with its pitch. */
function room(yaw, pitch, [width, height], [fx, fy, x0, y0]) {
  const data = new Uint8ClampedArray(4 * width * height), radians = Math.PI / 180;
  const [sin, cos] = [Math.sin(pitch * radians), Math.cos(pitch * radians)];
  for (let at = 0; at < width * height; at++) {
    const right = ((at % width) - x0) / fx, down = (Math.floor(at / width) - y0) / fy;
    const up = sin - cos * down, ahead = cos + sin * down;
    const direction = [yaw + Math.atan2(right, ahead) / radians, Math.atan2(up, Math.hypot(right, ahead)) / radians];
    data.set([128 + direction[0], 128 + direction[1], 77, 255], 4 * at);
  }
  return { width, height, data };
}

test("a turned picture is what a frame from there shows, and mirrored where the picture ends", () => {
  const size = [128, 72], lens = [64, 60, 60, 40], turn = new Turn();
  const from = room(30, 10, size, lens), to = room(0, 0, size, lens), wanted = room(42, 3, size, lens);
  turn.seen([0, 0, 0, 3000, 1000]);
  turn.ask([12, -7], 0);
  warp(from, to, turn.homography(lens), lens.slice(2));
  const known = (x, y) => x < 95 && y < 55; // what the picture showed before, too
  for (let at = 0; at < to.data.length; at++) {
    const x = (at / 4) % 128 | 0, y = Math.floor(at / 512);
    if (known(x, y)) assert.ok(Math.abs(to.data[at] - wanted.data[at]) <= 2, `${x}, ${y}: ${to.data[at]}, ${wanted.data[at]}`);
  }
  const row = (y) => [...to.data.slice(512 * y, 512 * y + 512)].filter((_, at) => at % 4 === 0);
  const across = row(20), furthest = across.indexOf(Math.max(...across));
  assert.ok(furthest > 90 && furthest < 126 && across[127] < across[furthest] - 5, across);
});
