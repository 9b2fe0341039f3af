// The time line: drag to scrub, drag a diamond to move its keyframe in time.

import { clamp } from "./math.js";
import { gestures, prepareCanvas } from "./dom.js";
import { niceStep } from "./views.js";

const PADDING = 10, KEY_ROW = 11; // pixels from the sides, and of the diamonds from the bottom

export class Timeline {
  /** `host`: the editor; its state, frame, scrub(frame), retime(from, to, gesture) and endDrag() are used. */
  constructor(canvas, host) {
    Object.assign(this, { canvas, host });
    gestures(canvas, { start: (point) => this.#start(point), end: () => host.endDrag() });
  }

  #x(frame) { return PADDING + (frame / (this.host.state.frames - 1)) * (this.canvas.clientWidth - 2 * PADDING); }

  #frame(x) {
    const last = this.host.state.frames - 1;
    return clamp(Math.round(((x - PADDING) / (this.canvas.clientWidth - 2 * PADDING)) * last), 0, last);
  }

  #start([x, y]) {
    const { host } = this, gesture = {}, low = y > this.canvas.clientHeight - 2 * KEY_ROW;
    const key = low && host.state.keyframes.find(({ frame }) => Math.abs(this.#x(frame) - x) < 7);
    let at = key ? key.frame : this.#frame(x);
    host.scrub(at);
    return ([now]) => {
      if (key) at = host.retime(at, this.#frame(now), gesture);
      else host.scrub(this.#frame(now));
    };
  }

  draw(theme) {
    const { context, height } = prepareCanvas(this.canvas), { state, frame } = this.host;
    this.#ticks(context, height, theme);
    for (const key of state.keyframes) {
      context.fillStyle = key.frame === frame ? theme.accent : theme.key;
      const x = this.#x(key.frame), y = height - KEY_ROW;
      context.beginPath();
      for (const [dx, dy] of [[0, -5], [5, 0], [0, 5], [-5, 0]]) context.lineTo(x + dx, y + dy);
      context.fill();
    }
    context.fillStyle = theme.accent;
    context.fillRect(this.#x(frame) - 0.75, 4, 1.5, height - 4);
    context.beginPath();
    context.arc(this.#x(frame), 5, 4, 0, 2 * Math.PI);
    context.fill();
  }

  /** Labelled seconds, and a mark for every fourth frame (the latent frames the model sees) while they fit. */
  #ticks(context, height, theme) {
    const { frames, fps } = this.host.state, spacing = this.#x(1) - this.#x(0);
    context.fillStyle = theme.axis;
    if (spacing > 0.8) for (let i = 0; i < frames; i += 4) context.fillRect(Math.round(this.#x(i)), height - 4, 1, 4);
    const step = Math.max(1, niceStep(34 / (spacing * fps)));
    for (let second = 0; second * fps < frames; second += step) {
      const x = Math.round(this.#x(second * fps));
      context.fillStyle = theme.axis;
      context.fillRect(x, height - 28, 1, 28);
      context.fillStyle = theme.muted;
      if (x + 24 < this.canvas.clientWidth) context.fillText(`${second}s`, x + 4, height - 21);
    }
  }
}
