// Frames as they come: decoded, buffered, and drawn when their time has come.

import { Buffer } from "./buffer.mjs";
import { Decoder } from "./decode.mjs";

export { playsH264 } from "./decode.mjs";

const LONGEST_UNDECODED = 0.6; // seconds of pictures; where a browser decodes too slowly older ones are left out
const SPAN_MS = 3000; // over which the rate is counted

/** A frame that waits to be drawn: `camera` is its x, y, z, yaw and pitch.
 * @typedef {import("./buffer.mjs").Waiting & { image: ImageBitmap | VideoFrame, camera: number[] | null }} Frame */

export class Player {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {(frame: Frame) => void} drawn  called when a frame is seen
   * @param {(now: number, elapsed: number) => void} [tick]  called before each picture of the display
   */
  constructor(canvas, drawn, tick = () => {}) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false, willReadFrequently: true });
    this.drawn = drawn;
    this.buffer = new Buffer();
    this.decoder = new Decoder();
    this.clear();
    let before = 0;
    const loop = (now) => {
      this.#play(now);
      tick(now, now - before);
      before = now;
      this.request = requestAnimationFrame(loop);
    };
    this.request = requestAnimationFrame(loop);
  }

  /** Plays no more. */
  close() {
    cancelAnimationFrame(this.request);
    this.clear();
  }

  /** Forgets what waits: another walk begins. */
  clear() {
    this.buffer.clear();
    this.undecoded = [];
    this.epoch = (this.epoch ?? 0) + 1;
    this.shown = [];
    this.decoder.close();
  }

  /** Frames a second of the walk. */
  set fps(fps) {
    this.buffer.fps = fps;
  }

  get fps() {
    return this.buffer.fps;
  }

  get stalls() {
    return this.buffer.stalls;
  }

  /** Adds a frame_batch; batches are decoded in their order. */
  add(header, payload) {
    this.undecoded.push({ header, payload });
    const frames = () => this.undecoded.reduce((sum, batch) => sum + batch.header.num_frames, 0);
    while (this.undecoded.length > 1 && frames() > LONGEST_UNDECODED * this.fps + header.num_frames) {
      if (this.undecoded[0].header.encoding === "h264") break; // each is decoded from the one before
      this.undecoded.shift();
    }
    this.decoding ??= this.#decode().finally(() => { this.decoding = null; });
  }

  /** Frames a second that were seen lately; 0 soon after the last. */
  get rate() {
    const now = performance.now(), shown = this.shown.filter((at) => now - at < SPAN_MS);
    const goesOn = shown.length > 1 && now - shown.at(-1) < SPAN_MS / 3;
    return goesOn ? ((shown.length - 1) * 1000) / Math.max(1, shown.at(-1) - shown[0]) : 0;
  }

  /** Nothing comes for a while: the walk waits. */
  rest() {
    this.buffer.rest();
  }

  async #decode() {
    while (this.undecoded.length) {
      const { header, payload } = this.undecoded.shift(), { epoch } = this;
      try {
        const images = await this.decoder.decode(header, payload);
        if (epoch === this.epoch) this.buffer.push(images.map((image, index) => waiting(header, image, index)), performance.now());
        else images.forEach((image) => image.close());
      } catch (error) {
        console.error(error);
      }
    }
  }

  #play(now) {
    const frame = this.buffer.take(now);
    if (!frame) return;
    this.#draw(frame.image);
    this.shown = [...this.shown.filter((at) => now - at < SPAN_MS), now];
    this.drawn(frame);
  }

  #draw(image) {
    const width = image.displayWidth ?? image.width, height = image.displayHeight ?? image.height;
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    this.context.drawImage(image, 0, 0);
    image.close();
  }
}

/** A frame of a batch, decoded. @returns {Frame} */
const waiting = (header, image, index) => ({
  image, event: header.event_id ?? 0, chunk: header.chunk_index, camera: header.camera?.[index] ?? null,
  parts: index ? null : { waited: header.waited_ms, made: header.made_ms },
});
