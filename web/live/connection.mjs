// The websocket to the server: what is asked for goes out numbered, what comes is handed on, and a connection that breaks
// or falls silent is taken up again.

import { pack, unpack } from "./msgpack.mjs";
import { words } from "./words.mjs";

const AGAIN_MS = [300, 700, 1500, 3000, 5000, 5000, 10000, 10000, 10000, 10000];
const SILENT_MS = 5000; // whoever walks is told figures every second: where nothing comes for so long, nothing will,
const LONGEST_MS = 40000; // but a message may take as long on a slow way: twice as long each time, so long at most
const STEADY = 60; // figures by one connection that show that its way is not slow
const BEGIN_MS = 60000; // a walk that begins is told nothing meanwhile
const OVER = 1000; // the code of a connection whose walk is to end
export const GIVEN_UP = 4000; // of one that is silent, or whose view is gone: the server keeps its walk for a while
const STEERING = new Set(["camera_actions", "look", "stick"]); // the server says which of these are in a frame
const MOST_SENT = 400; // events whose times are remembered
export const WALK_OVER = /^the walk is over/i; // an error of the server: what would be taken up has ended

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
    this.patience = SILENT_MS;
    this.ended = false;
    this.#open();
  }

  /** Sends an event and returns its number; 0 where there is no connection, or its walk has not begun: the server would
   * do then what was meant for now. */
  send(kind, payload = null) {
    if (!this.walks || this.socket.readyState !== WebSocket.OPEN) return 0;
    const number = (this.number = (this.number ?? 0) + 1);
    this.socket.send(this.codec.encode({ type: "event", kind, payload, event_id: number }));
    if (kind === "restart") { this.begins = true; this.#expect(BEGIN_MS); }
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

  /** No other connection follows. The walk ends, but not where the connection is given up: then it pauses. */
  close(code = OVER) {
    this.ended = true;
    clearTimeout(this.timer);
    clearTimeout(this.watch);
    this.socket.close(code);
  }

  #open() {
    const socket = (this.socket = new WebSocket(this.address));
    let reason = "";
    socket.binaryType = "arraybuffer";
    this.walks = this.begins = false;
    this.told = 0; // figures
    if (this.resume) this.#expect(SILENT_MS);
    socket.onopen = () => {
      if (this.resume) this.#expect(BEGIN_MS); // of another walk, where the one before has ended
      socket.send(this.codec.encode({ ...this.init, resume: this.resume || undefined }));
    };
    socket.onmessage = ({ data }) => {
      const message = this.codec.decode(data);
      if (message?.type === "error") reason = message.content;
      if (message) this.#received(message);
      if (this.walks) this.#expect(this.begins ? BEGIN_MS : this.patience); else clearTimeout(this.watch);
    };
    socket.onclose = ({ code }) => {
      if (code === 1006 && this.resume) this.#lost(); else this.#over(reason);
    };
  }

  /** Gives the connection up where nothing comes for so many milliseconds. */
  #expect(milliseconds) {
    clearTimeout(this.watch);
    if (!this.ended) this.watch = setTimeout(() => this.#silent(), milliseconds);
  }

  #silent() {
    if (this.walks) this.patience = Math.min(LONGEST_MS, 2 * this.patience);
    this.#lost();
  }

  /** Opens another connection in place of one that broke or is silent: a silent network answers no close. */
  #lost() {
    if (this.ended) return;
    const { socket } = this;
    clearTimeout(this.watch);
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close(GIVEN_UP);
    this.sent.clear();
    if (this.tries >= AGAIN_MS.length) { this.#over(words("The server cannot be reached any more.")); return; }
    this.receiver.status({ content: "lost" });
    this.timer = setTimeout(() => this.#open(), AGAIN_MS[this.tries++]);
  }

  #over(reason) {
    if (this.ended) return;
    clearTimeout(this.watch);
    this.ended = true;
    this.receiver.closed(reason || words("The server has closed the connection."));
  }

  #received(message) {
    if (message.type === "frame_batch") {
      const { payload, ...header } = message;
      this.receiver.frames(header, payload);
    } else if (message.type === "status") {
      if (message.content === "started") Object.assign(this, { resume: message.resume, tries: 0, walks: true });
      if (["restarted", "failed"].includes(message.content)) this.begins = false;
      if (message.content === "figures" && (this.told += 1) >= STEADY) this.patience = SILENT_MS;
      this.receiver.status(message);
    } else if (message.type === "error") {
      this.begins = false;
      if (WALK_OVER.test(message.content)) { this.#over(message.content); this.socket.close(OVER); return; }
      this.receiver.failed(message.content);
    }
  }
}
