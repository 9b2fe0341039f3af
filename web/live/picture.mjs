// The picture on the stage: its place, what is shown before there is a frame, and how it turns at once.

import { Turn } from "./turn.mjs";

const TURN_DEGREES = [2, 1.5]; // of a frame, by keys and sticks at full speed: yaw, pitch
const LATENCIES = [80, 2000]; // milliseconds from a turn to its frames that are believed

export class Picture {
  /**
   * @param {HTMLElement} stage
   * @param {import("./input.mjs").Input} input
   * @param {(late: number) => void} turned  called with the milliseconds from a mouse's move to the turned picture
   */
  constructor(stage, input, turned) {
    Object.assign(this, { stage, input, turned, turn: new Turn(), atOnce: true, paused: false, facts: null, moves: [] });
    this.frame = stage.querySelector(".frame");
    this.canvas = stage.querySelector("canvas");
    this.around = stage.querySelector(".around").getContext("2d", { alpha: false });
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
    this.canvas.style.transform = "";
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
    const { width, height, lens } = facts;
    this.stage.style.setProperty("--aspect", width / height);
    if (lens) this.canvas.style.transformOrigin = `${(100 * lens[2]) / width}% ${(100 * lens[3]) / height}%`;
  }

  /** A frame is seen; keys are seen so many milliseconds after they are pressed. */
  seen({ camera }, latency) {
    this.preview.hidden = true;
    if (latency) this.turn.latency = Math.min(LATENCIES[1], Math.max(LATENCIES[0], latency));
    this.turn.seen(camera);
    if (this.turns) this.around.drawImage(this.canvas, 0, 0, this.around.canvas.width, this.around.canvas.height);
  }

  /** Before each picture of the display. */
  tick(now, elapsed) {
    const { facts, frame, input, turn } = this, seconds = Math.min(elapsed, 100) / 1000;
    if (this.turns) turn.ask(input.turning.map((value, axis) => value * TURN_DEGREES[axis] * facts.fps * seconds), now);
    turn.ease(now, elapsed);
    this.#transform(this.atOnce && facts?.lens ? turn.style(facts, frame.clientWidth / facts.width) : "");
    for (const at of this.moves) this.turned(performance.now() - at);
    this.moves = [];
  }

  #transform(style) {
    if (this.canvas.style.transform !== style) this.canvas.style.transform = style;
  }
}
