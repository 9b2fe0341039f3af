// How frames are sent: smaller where they do not arrive in time, and as at first again where they do.

const FEW = 5; // frames left out lately that are not yet too many: a batch has four
const SETTLES = 3; // seconds after a change: what is left out in them was made before it
const CALM = 10, LONGEST_CALM = 160; // seconds with no frame left out, until more is tried
const LEAST_WIDTH = 160;
const SMALLER = [[70, 1], [60, 0.6], [50, 0.4], [50, 0.25]]; // qualities, and shares of the width

/** What the server is asked for by an `output` event. @typedef {Record<string, string | number>} Output */

/** Steps from one way of sending to another, by the figures that a server tells every second. Where a larger picture was
 * too much, the next try has to wait twice as long. */
export class Quality {
  /**
   * @param {string} format  that the walk begins with
   * @param {number} quality  of that format
   * @param {boolean} plays  whether the browser plays H.264
   * @param {number} width  of the walk's frames
   */
  constructor(format, quality, plays, width) {
    const output = (name, compression, most) => ({
      realtime_output_format: name, output_compression: compression, realtime_preview_max_width: most,
    });
    const across = (share) => (share === 1 ? 0 : Math.max(LEAST_WIDTH, Math.round(width * share)));
    const smaller = SMALLER.map(([compression, share]) => output(plays ? "h264" : format, compression, across(share)));
    this.outputs = [output(format, quality, 0), ...smaller];
    this.patience = CALM;
    this.tried = false; // the last change was to more
    this.level = this.dropped = 0;
    this.#begin(0);
  }

  /** What is to be sent from now on, if it changes. @param {{ dropped: number, paused: boolean }} figures @returns {Output | null} */
  judge({ dropped, paused }) {
    const left = Math.max(0, dropped - this.dropped);
    this.dropped = dropped;
    if (paused) return null;
    if (this.settles > 0) { this.settles -= 1; return null; }
    this.late = this.late / 2 + left;
    this.calm = left ? 0 : this.calm + 1;
    if (this.late > FEW) return this.#less();
    return this.calm >= this.patience ? this.#more() : null;
  }

  #less() {
    if (this.tried) this.patience = Math.min(LONGEST_CALM, 2 * this.patience);
    this.tried = false;
    return this.#change(1);
  }

  #more() {
    if (this.tried) this.patience = CALM; // the last try has held for as long
    this.tried = this.level > 0;
    return this.#change(-1);
  }

  #change(by) {
    const level = Math.min(this.outputs.length - 1, Math.max(0, this.level + by));
    if (level === this.level) { this.#begin(0); return null; }
    this.level = level;
    this.#begin(SETTLES);
    return this.outputs[level];
  }

  #begin(settles) {
    Object.assign(this, { settles, late: 0, calm: 0 });
  }
}
