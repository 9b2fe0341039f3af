// Keys, mouse, gamepad and touch: what a person does becomes events of the protocol.

const KEYS = {
  KeyW: "w", KeyA: "a", KeyS: "s", KeyD: "d", KeyI: "i", KeyJ: "j", KeyK: "k", KeyL: "l",
  ArrowUp: "i", ArrowLeft: "j", ArrowDown: "k", ArrowRight: "l",
};
const DEGREES_PER_PIXEL = 0.1, TOUCH_DEGREES = 0.25;
const EVERY_MS = 33; // mouse and sticks are told so often at most
const DEAD = 0.12, STICK_PIXELS = 50;

export class Input {
  /**
   * @param {HTMLElement} stage  with a canvas, and two .stick for touch
   * @param {(kind: string, payload: unknown) => void} send
   * @param {Document | ShadowRoot} root  where keys are heard
   * @param {AbortSignal} signal  ends it
   */
  constructor(stage, send, root, signal) {
    this.stage = stage;
    this.canvas = stage.querySelector("canvas");
    this.send = send;
    this.root = root;
    this.held = new Set();
    this.look = [0, 0];
    this.stick = [0, 0, 0, 0]; // forward, right, yaw, pitch
    this.touches = new Map();
    this.active = false;
    root.addEventListener("keydown", (event) => this.#key(event, true), { signal });
    root.addEventListener("keyup", (event) => this.#key(event, false), { signal });
    root.addEventListener("focusin", ({ target }) => isTyping(target) && this.letGo(), { signal });
    window.addEventListener("blur", () => this.letGo(), { signal });
    const page = root.ownerDocument ?? root; // of a ShadowRoot
    page.addEventListener("visibilitychange", () => page.hidden && this.letGo(), { signal });
    this.canvas.addEventListener("pointerdown", (event) => this.#down(event));
    this.canvas.addEventListener("pointermove", (event) => this.#move(event));
    for (const end of ["pointerup", "pointercancel"]) this.canvas.addEventListener(end, (event) => this.#up(event));
    root.addEventListener("mousemove", (event) => {
      if (root.pointerLockElement === this.canvas) this.#turn(event.movementX, event.movementY, DEGREES_PER_PIXEL);
    }, { signal });
    const timer = setInterval(() => this.#tell(), EVERY_MS);
    signal.addEventListener("abort", () => clearInterval(timer));
  }

  /** Nothing is held any more. */
  letGo() {
    this.touches.clear();
    this.#sticksShown();
    if (this.held.size) { this.held.clear(); this.#tellKeys(); }
  }

  /** Tells a server that knows nothing, or what was held before a connection broke, all that is held. */
  tellAll(again) {
    const stick = this.#sticks();
    if (!this.active || !(again || this.held.size || stick.some(Boolean))) return;
    this.#tellKeys();
    this.stick = stick;
    this.send("stick", stick);
  }

  #key(event, down) {
    const key = KEYS[event.code];
    if (event.key === "Meta") this.letGo(); // macOS tells of no key that comes up while Command is held
    if (!this.active || !key || (down ? isMeantElsewhere(event) : !this.held.has(key))) return;
    event.preventDefault();
    if (this.held.has(key) === down) return;
    if (down) this.held.add(key); else this.held.delete(key);
    this.#tellKeys();
  }

  #tellKeys() {
    const transition = { actions: [...this.held].sort(), client_ts_ms: Math.round(performance.now()) };
    this.send("camera_actions", { mode: "state", transitions: [transition] });
  }

  #turn(x, y, degrees) {
    this.look = [this.look[0] + degrees * x, this.look[1] - degrees * y];
  }

  #down(event) {
    this.canvas.focus();
    if (!this.active) return;
    if (event.pointerType === "mouse") {
      if (this.root.pointerLockElement !== this.canvas) Promise.resolve(this.canvas.requestPointerLock?.()).catch(() => {});
      return;
    }
    const { left, width } = this.canvas.getBoundingClientRect();
    const role = event.clientX - left < width / 2 ? "move" : "look";
    this.canvas.setPointerCapture(event.pointerId);
    this.touches.set(event.pointerId, { role, from: [event.clientX, event.clientY], at: [event.clientX, event.clientY] });
    this.#sticksShown();
  }

  #move(event) {
    const touch = this.touches.get(event.pointerId);
    if (!touch) return;
    if (touch.role === "look") this.#turn(event.clientX - touch.at[0], event.clientY - touch.at[1], TOUCH_DEGREES);
    touch.at = [event.clientX, event.clientY];
    this.#sticksShown();
  }

  #up(event) {
    this.touches.delete(event.pointerId);
    this.#sticksShown();
  }

  #sticksShown() {
    for (const role of ["move", "look"]) {
      const touch = [...this.touches.values()].find((candidate) => candidate.role === role);
      const knob = this.stage.querySelector(`.stick.${role} i`);
      const [x, y] = touch ? this.#deflection(touch) : [0, 0];
      knob.style.translate = `${34 * x}px ${34 * y}px`;
    }
  }

  #deflection({ from, at }) {
    const [x, y] = [at[0] - from[0], at[1] - from[1]].map((pixels) => pixels / STICK_PIXELS), length = Math.hypot(x, y);
    return length > 1 ? [x / length, y / length] : [x, y];
  }

  /** Gamepad and finger: forward, right, yaw, pitch. */
  #sticks() {
    const stick = this.#pad(), touch = [...this.touches.values()].find(({ role }) => role === "move");
    if (touch) { const [x, y] = this.#deflection(touch); stick[0] -= y; stick[1] += x; }
    return stick;
  }

  /** Sticks and mouse, if they have changed. */
  #tell() {
    if (!this.active) return;
    const stick = this.#sticks();
    if (stick.some((value, axis) => Math.abs(value - this.stick[axis]) > 0.02)) {
      this.stick = stick;
      this.send("stick", stick);
    }
    if (Math.hypot(...this.look) > 0.05) {
      this.send("look", this.look);
      this.look = [0, 0];
    }
  }

  /** The first gamepad: left stick walks, right stick looks. */
  #pad() {
    const pad = [...(navigator.getGamepads?.() ?? [])].find((candidate) => candidate?.connected);
    const axis = (index) => { const value = pad?.axes[index] ?? 0; return Math.abs(value) < DEAD ? 0 : value; };
    return [-axis(1), axis(0), axis(2), -axis(3)];
  }
}

const isMeantElsewhere = (event) => event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target);

export const isTyping = (target) => target instanceof Element && Boolean(target.closest("input:not([type=checkbox]), textarea, select"));
