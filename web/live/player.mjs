// Frames as they come, decoded and played at the rate at which they come: a small buffer, no bursts.

const LONGEST_QUEUE = 1.2; // seconds; what is more is left out
const LONGEST_DECODING_MS = 400; // of a batch of H.264
const SPAN_MS = 3000; // over which the rate is counted

/** A frame that waits to be drawn. @typedef {{ image: ImageBitmap | VideoFrame, event: number, chunk: number }} Waiting */

export class Player {
  /** @param {HTMLCanvasElement} canvas @param {(frame: Waiting) => void} drawn  called when a frame is seen */
  constructor(canvas, drawn) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.drawn = drawn;
    this.fps = 16;
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
    this.queue?.forEach(({ image }) => image.close());
    this.queue = /** @type {Waiting[]} */ ([]);
    this.order = Promise.resolve();
    this.epoch = (this.epoch ?? 0) + 1;
    this.due = 0;
    this.arrived = [];
    this.shown = [];
    this.stalls = 0;
    this.decoder?.close();
    this.decoder = null;
  }

  /** Adds a frame_batch; batches are decoded in their order. */
  add(header, payload) {
    const epoch = this.epoch;
    this.order = this.order.then(async () => {
      const images = header.encoding === "h264" ? await this.#h264(header, payload) : await pictures(header, payload);
      if (epoch !== this.epoch) return images.forEach((image) => image.close());
      const now = performance.now();
      this.arrived.push({ at: now, frames: images.length });
      this.arrived = this.arrived.filter(({ at }) => now - at < SPAN_MS);
      this.queue.push(...images.map((image) => ({ image, event: header.event_id ?? 0, chunk: header.chunk_index })));
      this.#trim(images.length);
    }).catch((error) => console.error(error));
  }

  /** Frames a second that were seen lately. */
  get rate() {
    const [first] = this.shown, last = this.shown.at(-1);
    return this.shown.length < 2 ? 0 : ((this.shown.length - 1) * 1000) / Math.max(1, last - first);
  }

  /** Milliseconds from one frame to the next: the walk's own, or longer where frames come slower. */
  get #interval() {
    const [first] = this.arrived, last = this.arrived.at(-1);
    const frames = this.arrived.slice(1).reduce((sum, batch) => sum + batch.frames, 0);
    const coming = this.arrived.length > 2 ? (frames * 1000) / Math.max(1, last.at - first.at) : this.fps;
    return 1000 / Math.min(this.fps, Math.max(2, coming * (this.queue.length > 6 ? 1.15 : 1)));
  }

  #trim(newest) {
    const most = Math.max(newest + 2, LONGEST_QUEUE * this.fps);
    while (this.queue.length > most) this.queue.shift().image.close();
  }

  #play(now) {
    if (!this.queue.length) {
      this.waited ||= this.due && now > this.due ? now : 0;
      return;
    }
    if (now < this.due - 4) return;
    if (this.waited && now - this.waited > 1.5 * 1000 / this.fps) this.stalls += 1;
    this.waited = 0;
    const frame = this.queue.shift();
    this.due = Math.max(now - 20, this.due) + this.#interval;
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
    const images = [];
    if (!this.decoder) {
      this.decoder = new VideoDecoder({ output: (frame) => this.decoded.push(frame), error: (error) => console.error(error) });
      this.decoder.configure({ ...H264, optimizeForLatency: true });
      this.stamp = 0;
    }
    this.decoded = images;
    const units = split(header, payload);
    for (const data of units) {
      const type = isKey(data) ? "key" : "delta";
      this.decoder.decode(new EncodedVideoChunk({ type, timestamp: this.stamp++, data }));
    }
    const patience = performance.now() + LONGEST_DECODING_MS;
    while (images.length < units.length && performance.now() < patience && this.decoder?.state === "configured") {
      await new Promise((resolve) => { setTimeout(resolve, 2); });
    }
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

function split(header, payload) {
  let at = 0;
  return header.payload_lengths.map((length) => payload.subarray(at, (at += length)));
}

const pictures = (header, payload) => Promise.all(
  split(header, payload).map((part) => createImageBitmap(new Blob([part], { type: header.content_type }))),
);
