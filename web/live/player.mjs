// Frames as they come: decoded, buffered, and drawn when their time has come.

import { Buffer } from "./buffer.mjs";

const LONGEST_DECODING_MS = 400; // of a batch of H.264
const LONGEST_UNDECODED = 0.6; // seconds of pictures; where a browser decodes too slowly older ones are left out
const SPAN_MS = 3000; // over which the rate is counted

/** A frame that waits to be drawn. @typedef {import("./buffer.mjs").Waiting & { image: ImageBitmap | VideoFrame }} Frame */

export class Player {
  /** @param {HTMLCanvasElement} canvas @param {(frame: Frame) => void} drawn  called when a frame is seen */
  constructor(canvas, drawn) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.drawn = drawn;
    this.buffer = new Buffer();
    this.clear();
    const loop = (now) => { this.#play(now); this.request = requestAnimationFrame(loop); };
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
    this.decoder?.close();
    this.decoder = null;
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

  /** Frames a second that were seen lately. */
  get rate() {
    const now = performance.now(), shown = this.shown.filter((at) => now - at < SPAN_MS);
    return shown.length < 2 ? 0 : ((shown.length - 1) * 1000) / Math.max(1, now - shown[0]);
  }

  /** Nothing comes for a while: the walk waits. */
  rest() {
    this.buffer.rest();
  }

  async #decode() {
    while (this.undecoded.length) {
      const { header, payload } = this.undecoded.shift(), { epoch } = this;
      try {
        const images = header.encoding === "h264" ? await this.#h264(header, payload) : await pictures(header, payload);
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

  /** Frames of H.264 in Annex B, by the browser's own decoder. */
  async #h264(header, payload) {
    const units = split(header, payload), images = [];
    if (!this.decoder) {
      this.decoder = new VideoDecoder({ output: (frame) => this.decoded(frame), error: (error) => console.error(error) });
      this.decoder.configure({ ...H264, optimizeForLatency: true });
      this.stamp = 0;
    }
    const all = new Promise((resolve) => {
      this.decoded = (frame) => { if (images.push(frame) === units.length) resolve(); };
    });
    for (const data of units) {
      const type = isKey(data) ? "key" : "delta";
      this.decoder.decode(new EncodedVideoChunk({ type, timestamp: this.stamp++, data }));
    }
    await Promise.race([all, new Promise((resolve) => { setTimeout(resolve, LONGEST_DECODING_MS); })]);
    return images;
  }
}

const H264 = { codec: "avc1.42E028" };

/** Whether the browser decodes H.264 by WebCodecs: only where the page is from this machine, or by https. */
export async function playsH264() {
  if (!("VideoDecoder" in window)) return false;
  const { supported } = await VideoDecoder.isConfigSupported(H264).catch(() => ({ supported: false }));
  return Boolean(supported);
}

/** Whether an access unit begins with a parameter set, as key frames do. */
function isKey(data) {
  for (let at = 0; at < Math.min(64, data.length - 4); at++) {
    if (data[at] === 0 && data[at + 1] === 0 && data[at + 2] === 1) return (data[at + 3] & 31) === 7;
  }
  return false;
}

/** A frame of a batch, decoded. @returns {Frame} */
const waiting = (header, image, index) => ({
  image, event: header.event_id ?? 0, chunk: header.chunk_index, camera: header.camera?.[index] ?? null,
});

function split(header, payload) {
  let at = 0;
  return header.payload_lengths.map((length) => payload.subarray(at, (at += length)));
}

const pictures = (header, payload) => Promise.all(
  split(header, payload).map((part) => createImageBitmap(new Blob([part], { type: header.content_type }))),
);
