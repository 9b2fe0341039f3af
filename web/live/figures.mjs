// What was measured of a walk: from keys to the frames that they are seen in, frames a second, what the server tells.

import { words } from "./words.mjs";

const MOST_ANSWERS = 2000, RECENT = 100;
const MANY = 50; // turns and parts that are remembered

export const percentile = (values, share) => [...values].sort((a, b) => a - b)[Math.min(values.length - 1, Math.floor(share * values.length))];
const median = (values) => Math.round(percentile(values, 0.5));
const gigabytes = (bytes) => (bytes / 1e9).toFixed(1);

export class Figures {
  /** @param {HTMLElement} stage  with elements of data-figure @param {import("./player.mjs").Player} player */
  constructor(stage, player) {
    Object.assign(this, { stage, player });
    this.clear();
  }

  /** Another walk begins. */
  clear() {
    Object.assign(this, { server: {}, answers: [], turns: [], parts: [], first: 0, began: performance.now() });
    this.set("window", "");
    this.show();
  }

  /** A frame is seen that these answers, in milliseconds, belong to. */
  seen(frame, answers) {
    this.first ||= performance.now() - this.began;
    this.answers = [...this.answers, ...answers].slice(-MOST_ANSWERS);
    if (frame.parts?.waited !== undefined) this.parts = [...this.parts, frame.parts].slice(-MANY);
  }

  /** The picture was turned so many milliseconds after it was asked for. */
  turned(milliseconds) {
    this.turns = [...this.turns, milliseconds].slice(-MANY);
  }

  /** The milliseconds from a key to its frame, lately. */
  get latency() {
    return this.answers.length ? percentile(this.answers.slice(-20), 0.5) : 0;
  }

  /** What *Save > Figures* saves. */
  measures(format, walk) {
    const { answers, first, parts, player, server, turns } = this;
    const seconds = (values, share) => (percentile(values, share) ?? 0) / 1000;
    return {
      first_frame_s: first / 1000, keys: answers.length,
      key_to_pixel_p50_s: seconds(answers, 0.5), key_to_pixel_p95_s: seconds(answers, 0.95),
      key_to_pixel_most_s: Math.max(0, ...answers) / 1000,
      waited_p50_s: seconds(parts.map(({ waited }) => waited), 0.5), made_p50_s: seconds(parts.map(({ made }) => made), 0.5),
      turn_to_pixel_p50_s: seconds(turns, 0.5), turn_to_pixel_p95_s: seconds(turns, 0.95),
      frames_a_second: player.rate, stalls: player.stalls, format, walk, server,
    };
  }

  set(name, text) {
    const element = this.stage.querySelector(`[data-figure="${name}"]`);
    if (element) element.textContent = text;
  }

  /** Writes them over the picture. */
  show() {
    const { server, player, parts } = this, recent = this.answers.slice(-RECENT);
    this.set("rate", player.rate.toFixed(1));
    this.set("latency", recent.length ? `${median(recent)} / ${Math.round(percentile(recent, 0.95))}` : "-");
    const [waited, made] = ["waited", "made"].map((part) => median(parts.map((each) => each[part])));
    this.set("parts", parts.length ? words("waited {waited}, made {made} ms", { waited, made }) : "");
    const { busy, gpu_total: total, gpu_used: used } = server;
    this.set("busy", busy === undefined ? "" : words("busy {share} %", { share: Math.round(100 * busy) }));
    const memory = () => words("{used} of {total} GB", { used: gigabytes(used), total: gigabytes(total) });
    this.set("gpu", total ? memory() : "");
    const drift = Object.entries(server.drift ?? {}).filter(([, ratio]) => typeof ratio === "number");
    this.set("drift", drift.map(([name, ratio]) => `${name} ${ratio.toFixed(2)}`).join(", "));
  }
}
