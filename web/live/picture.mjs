// The picture on the stage: its place, what is shown before there is a frame, and how it turns at once.

import { Turn, warp } from "./turn.mjs";

const TURN_DEGREES = [2, 1.5]; // of a frame, by keys and sticks at full speed: yaw, pitch
const LATENCIES = [80, 2000]; // milliseconds from a turn to its frames that are believed
const PAINT_MS = 30; // between two turned pictures of one frame: more of them would take a walk on the CPU its time

export class Picture {
  /**
   * @param {HTMLElement} stage
   * @param {import("./input.mjs").Input} input
   * @param {(late: number) => void} turned  called with the milliseconds from a mouse's move to the turned picture
   */
  constructor(stage, input, turned) {
    Object.assign(this, { stage, input, turned, turn: new Turn(), atOnce: true, paused: false, facts: null, moves: [], painted: 0 });
    this.canvas = stage.querySelector("canvas");
    this.over = stage.querySelector(".turned"); // lies over the canvas while the picture is turned
    this.preview = stage.querySelector(".preview");
    input.turned = (turn, at) => {
      if (!this.turns) return;
      this.turn.ask(turn, at);
      this.moves.push(at);
    };
  }

  /** Whether the picture turns before its frames come. */
  get turns() {
    return this.atOnce && !this.paused && this.input.active && Boolean(this.facts?.lens);
  }

  /** Another walk begins, or this one stands elsewhere. */
  clear() {
    this.turn.clear();
    this.over.hidden = true;
  }

  /** Shows a picture in place of frames, until the next one. @param {string} address  empty for none
   * @param {number} [aspect]  of the walk, width over height @param {string} [fit]  as CSS has it */
  show(address, aspect = 0, fit = "cover") {
    this.preview.hidden = !address;
    this.preview.style.objectFit = fit;
    if (address && this.preview.src !== address) this.preview.src = address;
    if (aspect) this.stage.style.setProperty("--aspect", aspect);
  }

  /** The server has told what the walk is. */
  began(facts) {
    this.facts = facts;
    this.stage.style.setProperty("--aspect", facts.width / facts.height);
  }

  /** A frame is seen; keys are seen so many milliseconds after they are pressed. */
  seen({ camera }, latency) {
    this.preview.hidden = true;
    if (latency) this.turn.latency = Math.min(LATENCIES[1], Math.max(LATENCIES[0], latency));
    this.turn.seen(camera);
    this.painted = 0;
    this.source = null;
  }

  /** Before each picture of the display. */
  tick(now, elapsed) {
    const { facts, input, turn } = this, seconds = Math.min(elapsed, 100) / 1000;
    if (this.turns) turn.ask(input.turning.map((value, axis) => value * TURN_DEGREES[axis] * facts.fps * seconds), now);
    turn.ease(now, elapsed);
    if (now - this.painted < PAINT_MS) return;
    this.painted = now;
    this.#paint(this.atOnce && facts?.lens ? turn.homography(this.#lens) : null);
    for (const at of this.moves) this.turned(performance.now() - at);
    this.moves = [];
  }

  /** The lens in pixels of the canvas, which may be smaller than the walk. */
  get #lens() {
    return this.facts.lens.map((value) => (value * this.canvas.width) / this.facts.width);
  }

  #paint(homography) {
    const { canvas, over } = this, { width, height } = canvas;
    over.hidden = !homography;
    if (!homography) return;
    if (over.width !== width || over.height !== height) Object.assign(over, { width, height });
    this.source ??= canvas.getContext("2d").getImageData(0, 0, width, height);
    if (this.target?.width !== width || this.target.height !== height) this.target = new ImageData(width, height);
    warp(this.source, this.target, homography, this.#lens.slice(2));
    over.getContext("2d", { alpha: false }).putImageData(this.target, 0, 0);
  }
}
