import assert from "node:assert/strict";
import { test } from "node:test";
import { Buffer } from "../../web/live/buffer.mjs";

const DISPLAY_MS = 1000 / 60, FRAME_MS = 1000 / 16;

/** A walk of a clock of its own: batches arrive when the test says, and a display asks for frames. What is shown is
 * told with the age of each frame: milliseconds from its arrival. */
class Clock {
  constructor(fps = 16) {
    Object.assign(this, { now: 1000, fps, buffer: new Buffer(fps), shown: [], left: 0, number: 0, chunks: 0, display: DISPLAY_MS, hidden: false });
    this.arrivals = []; // { at, count }
    this.drawn = this.now;
  }

  batch(count, at = this.now) {
    const frames = Array.from({ length: count }, () => (
      { number: this.number++, at, image: { close: () => { this.left += 1; } }, event: 0, chunk: this.chunks }));
    this.chunks += 1;
    this.buffer.push(frames, at);
  }

  /** Batches of so many frames for so many seconds, each `jitter()` milliseconds late. */
  come(seconds, { count = 4, fps = this.fps, jitter = () => 0 } = {}) {
    const every = (1000 * count) / fps, ends = this.now + 1000 * seconds;
    this.next = Math.max(this.next ?? 0, this.now);
    for (; this.next <= ends; this.next += every) this.arrivals.push({ at: this.next + jitter(), count });
    this.arrivals.sort((one, other) => one.at - other.at);
    this.run(seconds);
  }

  run(seconds) {
    for (const ends = this.now + 1000 * seconds; this.now < ends; this.now += 1) {
      while (this.arrivals.length && this.arrivals[0].at <= this.now) { const { at, count } = this.arrivals.shift(); this.batch(count, at); }
      if (this.hidden || this.now < this.drawn) continue;
      this.drawn = this.now + this.display;
      const frame = this.buffer.take(this.now);
      if (frame) { this.shown.push({ number: frame.number, at: this.now, age: this.now - frame.at }); }
    }
  }

  /** The mean age of the frames shown in the last seconds: of whole chunks, where that is a multiple of 3. */
  age(seconds = 3) {
    const ages = this.shown.filter(({ at }) => at > this.now - 1000 * seconds).map(({ age }) => age);
    return ages.reduce((sum, age) => sum + age, 0) / ages.length;
  }
}

/** Numbers from 0 to 1, always the same. */
function random(seed = 1) {
  let state = seed;
  return () => { state = (state * 1103515245 + 12345) % 2147483648; return state / 2147483648; };
}

const calm = (options = {}) => { const clock = new Clock(options.fps); clock.come(12, options); return clock; };

test("frames are shown evenly and in order, none is left out, and none waits longer than its batch", () => {
  const clock = calm();
  const numbers = clock.shown.map(({ number }) => number);
  assert.deepEqual(numbers, [...numbers.keys()]);
  const gaps = clock.shown.slice(5).map(({ at }, index) => at - clock.shown[index + 4].at);
  assert.ok(Math.max(...gaps) <= 62.5 + DISPLAY_MS && Math.min(...gaps) >= 62.5 - 2 * DISPLAY_MS, `${Math.min(...gaps)} to ${Math.max(...gaps)} ms`);
  assert.ok(clock.age() <= 130, `${clock.age()} ms`);
  assert.equal(clock.left, 0);
});

const FILLED = {
  "four seconds without animation frames": (clock, count) => { clock.hidden = true; clock.come(4, { count }); clock.hidden = false; },
  "a minute in another tab": (clock, count) => { clock.hidden = true; clock.come(60, { count }); clock.hidden = false; },
  "half a second without animation frames, again and again": (clock, count) => {
    for (let times = 0; times < 20; times++) { clock.hidden = true; clock.come(0.5, { count }); clock.hidden = false; clock.come(0.5, { count }); }
  },
  "a display that draws seldom": (clock, count) => { clock.display = 190; clock.come(10, { count }); clock.display = DISPLAY_MS; },
  "a burst after a stall of the network": (clock, count) => { clock.run(1.5); for (let batches = 0; batches < 6; batches++) clock.batch(count); },
  "a burst of which a part was left out": (clock, count) => { clock.run(2.5); for (let batches = 0; batches < 5; batches++) clock.batch(count); },
  "a burst without a stall": (clock, count) => { for (let batches = 0; batches < 4; batches++) clock.batch(count); },
  "one late batch": (clock, count) => { clock.run(0.4); clock.batch(count); },
  "pictures that were decoded slowly for a while": (clock, count) => { clock.come(5, { count, jitter: () => 350 }); },
  "a machine that was slower for a while": (clock, count) => { clock.come(8, { count, fps: 9 }); },
  "a long answer of the server": (clock) => { clock.run(3); },
};
for (const [what, fill] of Object.entries(FILLED)) {
  for (const count of [4, 12]) {
    test(`${what}: two seconds later the buffer is at its goal (batches of ${count})`, () => {
      const clock = calm({ count }), before = clock.age();
      fill(clock, count);
      clock.come(2, { count });
      clock.come(3, { count });
      assert.ok(clock.age() <= before + FRAME_MS, `${before} ms, then ${clock.age()}`);
      assert.ok(clock.buffer.queue.length <= count + 1, clock.buffer.queue.length);
    });
  }
}

test("arrivals that are off by 20 ms let nothing stall, and the lag of the fifth minute is that of the first", () => {
  const noise = random(), jitter = () => 20 * noise(), clock = new Clock();
  clock.come(60, { jitter });
  const first = clock.age(50), stalls = clock.buffer.stalls;
  clock.come(240, { jitter });
  assert.ok(clock.age(50) <= first + 10, `${first} ms, then ${clock.age(50)}`);
  assert.equal(clock.buffer.stalls, stalls);
});

test("frames that are made slower than they are to be played are shown as evenly as they come", () => {
  const clock = calm({ fps: 16 });
  clock.come(5, { fps: 8 });
  const at = clock.shown.length;
  clock.come(10, { fps: 8 });
  const gaps = clock.shown.slice(at).map(({ at: shown }, index) => shown - clock.shown[at + index - 1].at);
  assert.ok(Math.max(...gaps) < 190, `${Math.max(...gaps)} ms`);
  assert.equal(clock.left, 0);
});

test("sixty frames a second, which no display shows faster, catch up by leaving some out", () => {
  const clock = calm({ fps: 60 });
  for (let batches = 0; batches < 12; batches++) clock.batch(4);
  clock.come(2);
  clock.come(1);
  assert.ok(clock.age(1) < 120, `${clock.age(1)} ms`);
});

test("every image is drawn or closed", () => {
  const clock = calm();
  for (let batches = 0; batches < 20; batches++) clock.batch(4);
  clock.come(3);
  assert.equal(clock.shown.length + clock.left + clock.buffer.queue.length, clock.number);
  clock.buffer.clear();
  assert.equal(clock.shown.length + clock.left, clock.number);
});

test("a rest is no stall", () => {
  const clock = calm();
  clock.run(0.3);
  clock.buffer.rest();
  clock.run(20);
  const { stalls } = clock.buffer;
  clock.come(5);
  assert.equal(clock.buffer.stalls, stalls);
  assert.ok(clock.age() <= 130, `${clock.age()} ms`);
});
