// The last ten seconds of a walk as a video, and what is seen as a photo. The batches of frames are kept as they came; a
// clip is played once more, unseen, and recorded by the browser.

import { begins, Decoder } from "./decode.mjs";
import { words } from "./words.mjs";

const SECONDS = 10;
const KINDS = ["video/mp4;codecs=avc1.42E01E", "video/webm;codecs=vp9", "video/webm;codecs=vp8", "video/webm"];
const BITS = 12e6; // a second

export class Clip {
  constructor() {
    this.clear();
  }

  /** Another walk begins. */
  clear() {
    this.batches = [];
  }

  /** A frame_batch has come. */
  keep(header, payload, fps) {
    this.fps = fps;
    this.batches.push({ header, payload });
    const frames = (batches) => batches.reduce((sum, { header: { num_frames: count } }) => sum + count, 0);
    for (;;) { // H.264 is decoded from a key frame on
      const next = this.batches.findIndex((batch, index) => index > 0 && begins(batch.header, batch.payload));
      if (next < 0 || frames(this.batches.slice(next)) < SECONDS * fps) return;
      this.batches.splice(0, next);
    }
  }

  /** The walk goes back to where so many chunks were made. */
  cut(chunks) {
    this.batches = this.batches.filter(({ header }) => header.chunk_index < chunks);
  }

  /** The last ten seconds, as a file of a video. Throws an Error that says why there is none.
   * @param {(context: CanvasRenderingContext2D, camera: number[] | null) => void} paint  called after each frame
   * @returns {Promise<File>} */
  async save(paint = () => {}) {
    if (!this.batches.length) throw new Error(words("nothing was walked yet"));
    const kind = globalThis.MediaRecorder && KINDS.find((name) => MediaRecorder.isTypeSupported(name));
    if (!kind) throw new Error(words("this browser records no video; Save > Video has the whole walk"));
    const { width, height } = this.batches.at(-1).header, canvas = Object.assign(document.createElement("canvas"), { width, height });
    const context = canvas.getContext("2d", { alpha: false }), stream = canvas.captureStream();
    const recorder = new MediaRecorder(stream, { mimeType: kind, videoBitsPerSecond: BITS }), parts = [];
    const ended = new Promise((resolve, reject) => {
      recorder.ondataavailable = ({ data }) => parts.push(data);
      recorder.onstop = resolve;
      recorder.onerror = ({ error }) => reject(new Error(error?.message ?? words("the recording failed")));
    });
    recorder.start(1000);
    await this.#play([...this.batches], (image, camera) => {
      context.drawImage(image, 0, 0, width, height);
      paint(context, camera);
    });
    recorder.stop();
    await ended;
    stream.getTracks().forEach((track) => track.stop());
    const type = kind.split(";")[0];
    return new File(parts, `walk.${type.split("/")[1]}`, { type });
  }

  /** Draws the last frames of batches one after another, each for its time. */
  async #play(batches, draw) {
    const decoder = new Decoder(), frame = 1000 / this.fps;
    const total = batches.reduce((sum, { header }) => sum + header.num_frames, 0);
    let left = total - SECONDS * this.fps, due = performance.now();
    for (const { header, payload } of batches) {
      for (const [index, image] of (await decoder.decode(header, payload)).entries()) {
        if (left-- <= 0) {
          draw(image, header.camera?.[index] ?? null);
          due = Math.max(due, performance.now() - frame) + frame;
          await new Promise((resolve) => { setTimeout(resolve, Math.max(0, due - performance.now())); });
        }
        image.close();
      }
    }
    decoder.close();
  }
}

/** What a canvas shows, as a file of a picture. @param {HTMLCanvasElement} canvas @returns {Promise<File>} */
export function photo(canvas) {
  return new Promise((resolve, reject) => {
    canvas.toBlob((blob) => {
      if (blob) resolve(new File([blob], "walk.png", { type: blob.type }));
      else reject(new Error(words("nothing is seen yet")));
    });
  });
}
