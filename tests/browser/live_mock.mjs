// The page of a live walk with a server of the test's own: the page's files, and a websocket whose walk is a room of
// coloured stripes, made as fast as the test says. So lag and turning are measured without a model.

import { readFile } from "node:fs/promises";
import http from "node:http";
import { pack, unpack } from "../../web/live/msgpack.mjs";

const WEB = new URL("../../web/live/", import.meta.url);
const KINDS = { html: "text/html", mjs: "text/javascript", css: "text/css", json: "application/json" };
const WIDTH = 128, HEIGHT = 72, FPS = 16, FRAMES = 4, TURN = 2, FASTEST = 6;
const LENS = [64, 64, WIDTH / 2, HEIGHT / 2]; // 90 degrees across
const RADIANS = Math.PI / 180;

/** What is seen in a direction: stripes of ten degrees, lighter upwards. */
export function colour(yaw, pitch) {
  const stripe = Math.floor((((yaw % 360) + 360) % 360) / 10);
  return [40 + 5 * stripe, stripe % 2 ? 200 : 60, Math.round(128 + pitch)];
}

/** A picture of the room as a BMP. */
export function view(yaw, pitch, width = WIDTH, height = HEIGHT) {
  const row = width * 3, bytes = Buffer.alloc(54 + row * height), scale = width / WIDTH;
  bytes.write("BM");
  for (const [at, value] of [[2, bytes.length], [10, 54], [14, 40], [18, width], [22, height]]) bytes.writeUInt32LE(value, at);
  bytes.writeUInt16LE(1, 26);
  bytes.writeUInt16LE(24, 28);
  const [sin, cos] = [Math.sin(pitch * RADIANS), Math.cos(pitch * RADIANS)];
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const [right, down] = [(x + 0.5 - LENS[2] * scale) / (LENS[0] * scale), (y + 0.5 - LENS[3] * scale) / (LENS[1] * scale)];
      const up = sin - cos * down, ahead = cos + sin * down; // looks up by its pitch
      const [red, green, blue] = colour(yaw + Math.atan2(right, ahead) / RADIANS, Math.atan2(up, Math.hypot(right, ahead)) / RADIANS);
      bytes.set([blue, green, red], 54 + row * (height - 1 - y) + 3 * x);
    }
  }
  return bytes;
}

/** Serves the page. @returns {Promise<{ address: string, close: () => void }>} */
export async function serve() {
  const examples = [{ name: "stripes", prompt: "a striped room", own: true }, { name: "turned", prompt: "stripes, turned", own: false }];
  const server = http.createServer(async ({ url }, answer) => {
    const path = new URL(url, "http://here").pathname;
    const send = (kind, body) => { answer.setHeader("Content-Type", kind); answer.end(body); };
    if (path === "/examples") send("application/json", JSON.stringify(examples));
    else if (path.startsWith("/example/")) send("image/bmp", view(90 * Number(path.at(-1)), 0, 4 * WIDTH, 4 * HEIGHT));
    else if (path === "/server_info") send("application/json", JSON.stringify({ width: WIDTH, height: HEIGHT }));
    else {
      const name = path === "/" ? "index.html" : path.replace("/live/", "");
      const body = await readFile(new URL(name, WEB)).catch(() => null);
      if (body) send(KINDS[name.split(".").at(-1)], body); else answer.writeHead(404).end();
    }
  });
  await new Promise((resolve) => { server.listen(0, "127.0.0.1", resolve); });
  return { address: `http://127.0.0.1:${server.address().port}/`, close: () => server.close() };
}

/** The walk of a page: keys are read when a chunk begins, and its frames come `answer` milliseconds later. */
export class Walk {
  constructor({ answer = 100, extra = {} } = {}) {
    Object.assign(this, { answer, extra, yaw: 0, pitch: 0, pool: [0, 0], keys: [], stick: [0, 0, 0, 0], x: 0, z: 0, chunk: 0, event: 0 });
    this.events = [];
    this.held = []; // batches, while the network is stalled
    this.stalled = this.paused = false;
  }

  /** Has the page's websockets be this walk's. */
  attach(page) {
    return page.routeWebSocket(/realtime_video/, (socket) => {
      this.socket = socket;
      socket.onMessage((data) => this.#received(unpack(new Uint8Array(data).buffer)));
      socket.onClose(() => this.close());
    });
  }

  status(content, more = {}) {
    this.#send({ type: "status", content, ...more });
  }

  /** Nothing arrives, and then all at once. */
  stall(stalled) {
    this.stalled = stalled;
    if (!stalled) this.held.splice(0).forEach((data) => this.socket.send(data));
  }

  #send(message) {
    const data = Buffer.from(pack(message));
    if (this.stalled) this.held.push(data); else this.socket.send(data);
  }

  #received(message) {
    if (message.type === "init") {
      this.init = message;
      this.close();
      const facts = { folder: "walks/walk-1", width: WIDTH, height: HEIGHT, fps: FPS, chunk: 1, window: 18, sink: 6, prompt: message.prompt };
      this.status("started", { ...facts, lens: LENS, resume: "token", notes: [], ...this.extra });
      this.timer = setInterval(() => { if (!this.paused) this.#chunk(); }, (1000 * FRAMES) / FPS);
      this.figures = setInterval(() => this.status("figures", { dropped: 0, paused: this.paused, busy: 0.5 }), 1000);
      return;
    }
    this.events.push(message);
    const { kind, payload, event_id: number } = message;
    if (kind === "camera_actions") this.keys = payload.transitions.at(-1).actions;
    if (kind === "stick") this.stick = payload;
    if (kind === "look") this.pool = this.pool.map((degrees, axis) => degrees + payload[axis]);
    if (kind === "pause" || kind === "resume") { this.paused = kind === "pause"; this.status(`${kind}d`); }
    if (kind === "prompt") this.status("prompt", { text: payload.text });
    if (kind === "back") this.status("back", { chunk: payload });
    if (kind === "restart") { Object.assign(this, { chunk: 0, x: 0, z: 0, yaw: 0, pitch: 0 }); this.status("restarted", { folder: "walks/walk-2" }); }
    this.event = number;
  }

  #chunk() {
    const frames = [], { event } = this, axis = (more, less) => Number(this.keys.includes(more)) - Number(this.keys.includes(less));
    for (let frame = 0; frame < FRAMES; frame++) {
      const look = this.pool.map((degrees) => Math.max(-FASTEST, Math.min(FASTEST, degrees)));
      this.pool = this.pool.map((degrees, index) => degrees - look[index]);
      this.yaw += TURN * (axis("l", "j") + this.stick[2]) + look[0];
      this.pitch += TURN * (axis("i", "k") + this.stick[3]) + look[1];
      const ahead = 0.05 * (axis("w", "s") + this.stick[0]);
      this.x += ahead * Math.sin(this.yaw * RADIANS);
      this.z += ahead * Math.cos(this.yaw * RADIANS);
      const camera = [this.x * 1000, 0, this.z * 1000, 100 * this.yaw, 100 * this.pitch].map(Math.round);
      frames.push({ camera, picture: view(this.yaw, this.pitch) });
    }
    const lengths = frames.map(({ picture }) => picture.length), payload = Buffer.concat(frames.map(({ picture }) => picture));
    const header = { chunk_index: this.chunk++, num_frames: FRAMES, width: WIDTH, height: HEIGHT, encoding: "bmp", content_type: "image/bmp" };
    const batch = { ...header, payload_lengths: lengths, camera: frames.map(({ camera }) => camera), event_id: event, waited_ms: 60, made_ms: this.answer };
    setTimeout(() => this.#send({ type: "frame_batch", ...batch, payload }), this.answer);
  }

  close() {
    clearInterval(this.timer);
    clearInterval(this.figures);
  }
}
