// The controls fade while one walks, and are there again when the pointer moves, a finger taps, or the focus is in them.

const AFTER_MS = 3000, TAP_MS = 300, TAP_PIXELS = 12;

export class Fading {
  /**
   * @param {HTMLElement[]} parts  each has data-quiet while the controls are faded
   * @param {HTMLElement} bar  stays while the focus is in it, or a menu of it is open
   * @param {() => boolean} stays  whether they may not fade now
   * @param {() => boolean} locked  whether the mouse looks, and is no pointer
   * @param {AbortSignal} signal
   */
  constructor(parts, bar, stays, locked, signal) {
    Object.assign(this, { parts, bar, stays });
    const wake = () => this.wake();
    for (const part of parts) {
      part.addEventListener("pointermove", ({ pointerType }) => pointerType === "mouse" && !locked() && wake(), { signal });
      part.addEventListener("pointerdown", (event) => this.#pressed(event), { signal });
      part.addEventListener("pointerup", (event) => this.#released(event), { signal });
    }
    bar.addEventListener("focusin", wake, { signal });
    bar.addEventListener("focusout", wake, { signal });
    bar.addEventListener("input", wake, { signal });
    signal.addEventListener("abort", () => clearTimeout(this.timer));
  }

  /** Shows the controls, for some seconds at least. */
  wake() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#fade(), AFTER_MS);
    this.#quiet(false);
  }

  #fade() {
    if (this.stays() || this.bar.matches(":focus-within, :has([open])")) this.wake();
    else this.#quiet(true);
  }

  #quiet(quiet) {
    for (const part of this.parts) part.toggleAttribute("data-quiet", quiet);
  }

  #pressed({ timeStamp, clientX, clientY, target }) {
    this.tap = { at: timeStamp, x: clientX, y: clientY };
    if (this.bar.contains(target)) this.wake();
  }

  #released({ timeStamp, clientX, clientY, pointerType }) {
    const { at, x, y } = this.tap ?? {};
    const isTap = timeStamp - at < TAP_MS && Math.hypot(clientX - x, clientY - y) < TAP_PIXELS;
    if (pointerType !== "mouse" && isTap) this.wake();
  }
}
