// The frames that wait to be shown, and when each of them is: evenly, at the rate at which they come, and with one rule.
// What lies in the buffer beyond its goal is played off within two seconds, whatever filled it.

const GOAL_MS = 25; // the playback time left in the buffer when a batch arrives; covers the jitter of arrivals
const CATCH_UP_MS = 350; // the excess over the goal is divided by e in such a time
const SURE_MS = 100; // of excess: more is no jitter
const ARRIVALS = 3, LATELY_MS = 700; // the reserve is the least of the last batches; a chunk is one or two
const MOST_MS = 1200; // that waits; older frames are left out
const LONGEST_MS = 500; // of one frame, where frames come slowly
const CHUNKS = 3, SPAN_MS = 1500; // the rate of arrivals is that of so many last chunks at least
const EARLY_MS = 4; // a display's own frames are so much off
const STALL = 1.5; // times a frame's time without a frame is a stall

/** A frame that waits. @typedef {{ image: { close(): void }, event: number, chunk: number }} Waiting */

export class Buffer {
  /** @param {number} fps  of the walk */
  constructor(fps = 16) {
    this.fps = fps;
    this.clear();
  }

  /** Empties the buffer: another walk begins. */
  clear() {
    this.queue?.forEach(({ image }) => image.close());
    this.queue = /** @type {Waiting[]} */ ([]);
    this.arrived = []; // { at, chunk, frames } of the last chunks
    this.reserves = []; // { at, lasts }: milliseconds that the queue lasted when each of the last batches came
    this.due = 0; // when the next frame is to be shown; 0 before the first
    this.dry = 0; // since when no frame was there
    this.stalls = 0;
  }

  /** Adds the frames of a batch. @param {Waiting[]} frames @param {number} now  milliseconds, as of `take` */
  push(frames, now) {
    if (!frames.length) return;
    const lately = this.reserves.filter(({ at }) => now - at < LATELY_MS);
    if (this.due) this.reserves = [...lately, { at: now, lasts: this.#reserve(now) }].slice(-ARRIVALS);
    this.#count(frames, now);
    this.queue.push(...frames);
    const most = Math.max(frames.length + 2, MOST_MS / this.interval);
    while (this.queue.length > most) {
      const interval = this.interval, isPast = this.due + interval <= now;
      this.#skip();
      if (!isPast) { this.due -= interval; this.#gain(interval); } // the others are shown so much earlier
    }
  }

  /** The frame to show now, or null where the one that is seen stays. Frames whose time has gone by are left out.
   * @param {number} now @returns {Waiting | null} */
  take(now) {
    if (!this.queue.length) {
      if (this.due && now > this.due) this.dry ||= now;
      return null;
    }
    if (this.dry || !this.due) this.#begin(now);
    if (now < this.due - EARLY_MS) return null;
    while (this.queue.length > 1 && now >= this.due + this.interval - EARLY_MS) this.#skip();
    const pace = this.pace;
    this.#gain(this.interval - pace);
    this.due += pace;
    return this.queue.shift();
  }

  /** Nothing comes for a while that is no stall: the walk waits. */
  rest() {
    this.due = this.dry = 0;
    this.reserves = [];
    this.arrived = [];
  }

  /** Milliseconds from one frame to the next: the walk's own, or longer where frames come slower. */
  get interval() {
    const [first] = this.arrived, last = this.arrived.at(-1);
    const frames = this.arrived.slice(0, -1).reduce((sum, chunk) => sum + chunk.frames, 0);
    const coming = this.arrived.length >= CHUNKS ? (last.at - first.at) / frames : 0;
    return Math.min(LONGEST_MS, Math.max(1000 / this.fps, coming));
  }

  /** Milliseconds until the next frame: less than the interval while the buffer is over its goal. Frames that came in
   * a burst, after a gap, make the interval too long: an excess is played off by the walk's own. */
  get pace() {
    const { excess, interval } = this, own = Math.min(1, excess / SURE_MS);
    return (own * (1000 / this.fps) + (1 - own) * interval) / (1 + excess / CATCH_UP_MS);
  }

  /** Milliseconds that the buffer is over its goal. */
  get excess() {
    return this.reserves.length ? Math.max(0, Math.min(...this.reserves.map(({ lasts }) => lasts)) - GOAL_MS) : 0;
  }

  #count(frames, now) {
    const [{ chunk }] = frames, last = this.arrived.at(-1);
    if (last && last.chunk === chunk) { last.frames += frames.length; return; }
    const recent = this.arrived.filter(({ at }, index) => now - at < SPAN_MS || this.arrived.length - index < CHUNKS);
    this.arrived = [...recent, { at: now, chunk, frames: frames.length }];
  }

  /** The playing begins, or goes on after a time in which no frame was there. */
  #begin(now) {
    if (this.dry && now - this.dry > STALL * this.interval) this.stalls += 1;
    if (this.due) this.#gain(this.due - now);
    this.due = now;
    this.dry = 0;
  }

  /** All frames are shown so much earlier than was thought when the last batches came. */
  #gain(milliseconds) {
    this.reserves = this.reserves.map(({ at, lasts }) => ({ at, lasts: lasts - milliseconds }));
  }

  #reserve(now) {
    return this.due + this.queue.length * this.interval - now;
  }

  #skip() {
    this.queue.shift().image.close();
    this.due += this.interval;
  }
}
