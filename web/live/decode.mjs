// The frames of a batch, decoded by the browser: pictures each for itself, H.264 from the frames before.

const LONGEST_MS = 400; // that a batch of H.264 may take
const H264 = { codec: "avc1.42E028" };

export class Decoder {
  /** The images of a batch. @returns {Promise<(ImageBitmap | VideoFrame)[]>} */
  decode(header, payload) {
    return header.encoding === "h264" ? this.#h264(header, payload) : pictures(header, payload);
  }

  close() {
    if (this.decoder?.state === "configured") this.decoder.close();
    this.decoder = null;
  }

  /** Frames in Annex B. A batch waits for the decoder's own answer: timers are slow in a page that is not seen. */
  async #h264(header, payload) {
    const units = split(header, payload), images = [];
    if (!this.decoder) {
      this.decoder = new VideoDecoder({ output: (frame) => this.came(frame), error: (error) => console.error(error) });
      this.decoder.configure({ ...H264, optimizeForLatency: true });
      this.stamp = 0;
    }
    const all = new Promise((resolve) => {
      this.came = (frame) => { if (images.push(frame) === units.length) resolve(); };
    });
    for (const data of units) {
      const type = isKey(data) ? "key" : "delta";
      this.decoder.decode(new EncodedVideoChunk({ type, timestamp: this.stamp++, data }));
    }
    await Promise.race([all, new Promise((resolve) => { setTimeout(resolve, LONGEST_MS); })]);
    return images;
  }
}

/** Whether the browser decodes H.264 by WebCodecs: only where the page is from this machine, or by https. */
export async function playsH264() {
  if (!("VideoDecoder" in window)) return false;
  const { supported } = await VideoDecoder.isConfigSupported(H264).catch(() => ({ supported: false }));
  return Boolean(supported);
}

/** Whether a batch can be decoded without those before it. */
export const begins = (header, payload) => header.encoding !== "h264" || isKey(split(header, payload)[0]);

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
