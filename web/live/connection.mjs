// The websocket to the server: what is asked for goes out numbered, what comes is handed on, and a connection that breaks
// is taken up again.

import { pack, unpack } from "./msgpack.mjs";

const AGAIN_MS = [300, 700, 1500, 3000, 5000, 5000, 10000, 10000, 10000, 10000];
const STEERING = new Set(["camera_actions", "look", "stick"]); // the server says which of these are in a frame
const MOST_SENT = 400; // events whose times are remembered

/**
 * @typedef {object} Receiver
 * @property {(header: object, payload: Uint8Array) => void} frames
 * @property {(message: object) => void} status  what the server tells: started, waiting, figures, paused, prompt, ...
 * @property {(reason: string) => void} failed
 * @property {(reason: string) => void} closed  for good
 */

/**
 * How messages are written.
 * @typedef {object} Codec
 * @property {(message: object) => string | Uint8Array} encode
 * @property {(data: string | ArrayBuffer) => object | null} decode  null where the rest is still to come
 */

/** @type {Codec} */
export const MSGPACK = { encode: pack, decode: unpack };

/** For servers without msgpack: texts, and frames behind their headers. @returns {Codec} */
export function textCodec() {
  let header = null;
  return {
    encode: JSON.stringify,
    decode: (data) => {
      if (typeof data !== "string") return { ...header, type: "frame_batch", payload: new Uint8Array(data) };
      const message = JSON.parse(data);
      if (message.type !== "frame_batch_header") return message;
      header = message;
      return null;
    },
  };
}

export class Connection {
  /**
   * @param {object} init  the first message, without its type
   * @param {URL} address  of the server, http or https
   * @param {Codec} codec
   * @param {Receiver} receiver
   */
  constructor(init, address, codec, receiver) {
    this.init = { type: "init", lingbot_world: true, ...init };
    this.address = new URL(address);
    this.address.protocol = this.address.protocol === "https:" ? "wss:" : "ws:";
    this.codec = codec;
    this.receiver = receiver;
    this.sent = new Map(); // when each event was sent
    this.resume = "";
    this.tries = 0;
    this.ended = false;
    this.#open();
  }

  /** Sends an event and returns its number; 0 where there is no connection. */
  send(kind, payload = null) {
    if (this.socket.readyState !== WebSocket.OPEN) return 0;
    const number = (this.number = (this.number ?? 0) + 1);
    this.socket.send(this.codec.encode({ type: "event", kind, payload, event_id: number }));
    if (STEERING.has(kind)) this.sent.set(number, performance.now());
    if (this.sent.size > MOST_SENT) this.sent.delete(this.sent.keys().next().value);
    return number;
  }

  /** Frames made with event `number` are seen: milliseconds since each event up to it, of those not seen before. */
  seen(number) {
    const now = performance.now(), times = [...this.sent].filter(([sent]) => sent <= number);
    times.forEach(([sent]) => this.sent.delete(sent));
    return times.map(([, at]) => now - at);
  }

  close() {
    this.ended = true;
    clearTimeout(this.timer);
    this.socket.close(1000, "the walk is over");
  }

  #open() {
    const socket = (this.socket = new WebSocket(this.address));
    let reason = "";
    socket.binaryType = "arraybuffer";
    socket.onopen = () => socket.send(this.codec.encode({ ...this.init, resume: this.resume || undefined }));
    socket.onmessage = ({ data }) => {
      const message = this.codec.decode(data);
      if (!message) return;
      if (message.type === "error") reason = message.content;
      this.#received(message);
    };
    socket.onclose = ({ code }) => {
      if (this.ended) return;
      const broke = code === 1006 && this.resume && this.tries < AGAIN_MS.length;
      if (!broke) { this.ended = true; this.receiver.closed(reason || "The server has closed the connection."); return; }
      this.receiver.status({ content: "lost" });
      this.timer = setTimeout(() => this.#open(), AGAIN_MS[this.tries++]);
    };
  }

  #received(message) {
    if (message.type === "frame_batch") {
      const { payload, ...header } = message;
      this.receiver.frames(header, payload);
    } else if (message.type === "status") {
      if (message.content === "started") { this.resume = message.resume; this.tries = 0; }
      this.receiver.status(message);
    } else if (message.type === "error") {
      this.receiver.failed(message.content);
    }
  }
}
