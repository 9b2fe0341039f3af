// The time line: frames, seconds, keyframes, the playhead.

import { niceStep } from "../drawing/scene.js";
import { clamp } from "../math/vectors.js";
import { isFree, keyframeAt, retimeKeyframe } from "../path/edits.js";
import { Pane } from "./pane.js";
import { words } from "../../live/words.mjs";

const PADDING = 10; // pixels at both sides
const KEY_ROW = 11; // pixels of the diamonds' middle from the bottom
const KEY_REACH = 7; // pixels around a diamond in which a pointer hits it
const SECOND_PIXELS = 34; // between labelled seconds, at least

/** Drag to scrub, drag a diamond to move its keyframe in time. */
export class Timeline extends Pane {
  get takesWheel() {
    return false;
  }

  pan() {}

  zoom() {}

  get #pixelsPerFrame() {
    return (this.width - 2 * PADDING) / (this.host.state.frames - 1);
  }

  #x(frame) {
    return PADDING + frame * this.#pixelsPerFrame;
  }

  #frame(x) {
    return clamp(Math.round((x - PADDING) / this.#pixelsPerFrame), 0, this.host.state.frames - 1);
  }

  start([x, y]) {
    const { host } = this;
    const inKeyRow = y > this.height - 2 * KEY_ROW;
    const isHit = ({ frame }) => Math.abs(this.#x(frame) - x) < KEY_REACH;
    const key = inKeyRow ? host.state.keyframes.find(isHit) : undefined;
    host.scrub(key ? key.frame : this.#frame(x));
    if (!key) return ([now]) => host.scrub(this.#frame(now));
    const gesture = {};
    return this.editing(([now]) => this.#retime(this.#frame(now), gesture));
  }

  /** Moves the keyframe at the playhead to a frame, if that is free. */
  #retime(frame, gesture) {
    const { host } = this;
    if (!isFree(host.state, frame)) return;
    host.edit(retimeKeyframe(host.state, host.frame, frame), gesture);
    host.scrub(frame);
  }

  draw({ state }, theme) {
    const context = this.clear();
    this.#describe(state);
    this.#drawTicks(context, state, theme);
    this.#drawKeyframes(context, state, theme);
    this.#drawPlayhead(context);
  }

  /** Tells screen readers where the playhead is. */
  #describe({ frames, fps }) {
    const frame = Math.round(this.host.frame);
    this.canvas.ariaValueMax = frames - 1;
    this.canvas.ariaValueNow = frame;
    const seconds = (frame / fps).toFixed(1);
    this.canvas.ariaValueText = words("frame {frame}, {seconds} seconds", { frame, seconds });
  }

  /** Labelled seconds, and a mark for every fourth frame (the latent frames, which the model sees) while they fit. */
  #drawTicks(context, { frames, fps }, theme) {
    const mark = (frame, height) => context.fillRect(Math.round(this.#x(frame)), this.height - height, 1, height);
    const step = Math.max(1, niceStep(SECOND_PIXELS / (this.#pixelsPerFrame * fps)));
    for (let second = 0; second * fps < frames; second += step) {
      const x = this.#x(second * fps);
      context.fillStyle = theme.muted;
      if (x + 24 < this.width) context.fillText(`${second}s`, x + 4, this.height - 21);
      context.fillStyle = theme.axis;
      mark(second * fps, 28);
    }
    if (this.#pixelsPerFrame <= 0.8) return;
    for (let frame = 0; frame < frames; frame += 4) mark(frame, 4);
  }

  /** A diamond for each keyframe; the one at the playhead in the accent colour, which the playhead takes over. */
  #drawKeyframes(context, state, theme) {
    const diamond = ({ frame }) => `M${this.#x(frame)} ${this.height - KEY_ROW - 5}l5 5-5 5-5-5Z`;
    context.fillStyle = theme.key;
    context.fill(new Path2D(state.keyframes.map(diamond).join("")));
    context.fillStyle = theme.accent;
    if (keyframeAt(state, this.host.frame)) context.fill(new Path2D(diamond(this.host)));
  }

  #drawPlayhead(context) {
    const x = this.#x(this.host.frame);
    context.fillRect(x - 0.75, 4, 1.5, this.height - 4);
    context.fill(new Path2D(`M${x - 4} 5a4 4 0 0 0 8 0 4 4 0 0 0-8 0`));
  }
}
