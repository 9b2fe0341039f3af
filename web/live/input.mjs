// Keys, mouse, gamepad and touch: what a person does becomes events of the protocol.

const KEYS = {
  KeyW: "w", KeyA: "a", KeyS: "s", KeyD: "d", KeyI: "i", KeyJ: "j", KeyK: "k", KeyL: "l",
  ArrowUp: "i", ArrowLeft: "j", ArrowDown: "k", ArrowRight: "l",
};
const RUN = { ShiftLeft: "shift", ShiftRight: "shift" }, WALK = ["w", "a", "s", "d"];
const DEGREES_PER_PIXEL = 0.1;
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
    this.pressed = new Set(); // keys that are down, also while nobody walks
    this.look = [0, 0];
    this.stick = [0, 0, 0, 0]; // forward, right, yaw, pitch
    this.touches = new Map();
    this.walks = false;
    this.runs = false; // the server knows the key for running
    this.turned = (turn, at) => {}; // called when the mouse has turned by so many degrees, at a time
    root.addEventListener("keydown", (event) => this.#key(event, true), { signal });
    root.addEventListener("keyup", (event) => this.#key(event, false), { signal });
    root.addEventListener("focusin", ({ target }) => isTyping(target) && this.letGo(), { signal });
    window.addEventListener("blur", () => this.letGo(), { signal });
    const page = root.ownerDocument ?? root; // of a ShadowRoot
    page.addEventListener("visibilitychange", () => page.hidden && this.letGo(), { signal });
    const ground = this.canvas.closest?.(".stage") ?? this.canvas, early = { signal, capture: true };
    ground.addEventListener("pointerdown", (event) => this.#down(event), early);
    ground.addEventListener("pointermove", (event) => this.#move(event), early);
    for (const end of ["pointerup", "pointercancel"]) ground.addEventListener(end, (event) => this.#up(event), early);
    root.addEventListener("mousemove", (event) => {
      if (root.pointerLockElement === this.canvas) this.#turn(event.movementX, event.movementY, event.timeStamp);
    }, { signal });
    const timer = setInterval(() => this.#tell(), EVERY_MS);
    signal.addEventListener("abort", () => clearInterval(timer));
  }

  /** Whether one walks. What is down when a walk begins is held in it. */
  get active() {
    return this.walks;
  }

  set active(walks) {
    if (walks && !this.walks) this.held = new Set(this.pressed);
    this.walks = walks;
  }

  /** Nothing is held any more. */
  letGo() {
    this.touches.clear();
    this.pressed.clear();
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

  /** How keys and sticks turn the camera: of full speed, right and up. @returns {[number, number]} */
  get turning() {
    const { held, stick } = this, axis = (more, less) => Number(held.has(more)) - Number(held.has(less));
    return [axis("l", "j") + stick[2], axis("i", "k") + stick[3]].map((value) => Math.max(-1, Math.min(1, value)));
  }

  #key(event, down) {
    const key = KEYS[event.code] ?? (this.runs ? RUN[event.code] : undefined);
    if (event.key === "Meta") this.letGo(); // macOS tells of no key that comes up while Command is held
    if (key && !down) this.pressed.delete(key); else if (key && !isMeantElsewhere(event)) this.pressed.add(key);
    if (!this.active || !key || (down ? isMeantElsewhere(event) : !this.held.has(key))) return;
    event.preventDefault();
    if (this.held.has(key) === down) return;
    if (down) this.held.add(key); else this.held.delete(key);
    this.#tellKeys();
  }

  #tellKeys() {
    const runs = WALK.some((key) => this.held.has(key)); // Shift alone asks for nothing
    const actions = [...this.held].filter((key) => runs || key !== "shift").sort();
    const transition = { actions, client_ts_ms: Math.round(performance.now()) };
    this.send("camera_actions", { mode: "state", transitions: [transition] });
  }

  #turn(x, y, at) {
    const turn = [DEGREES_PER_PIXEL * x, -DEGREES_PER_PIXEL * y];
    this.look = [this.look[0] + turn[0], this.look[1] + turn[1]];
    if (this.active) this.turned(turn, at);
  }

  #down(event) {
    if (event.target.closest?.("button, a, .help")) return;
    this.canvas.focus();
    if (!this.active) return;
    if (event.pointerType === "mouse") {
      if (this.root.pointerLockElement !== this.canvas) Promise.resolve(this.canvas.requestPointerLock?.()).catch(() => {});
      return;
    }
    event.preventDefault();
    const { left, width } = (this.canvas.closest(".stage") ?? this.canvas).getBoundingClientRect();
    const role = event.clientX - left < width / 2 ? "move" : "look";
    this.canvas.setPointerCapture(event.pointerId);
    this.touches.set(event.pointerId, { role, from: [event.clientX, event.clientY], at: [event.clientX, event.clientY] });
    this.#sticksShown();
  }

  #move(event) {
    const touch = this.touches.get(event.pointerId);
    if (!touch) return;
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

  /** Gamepad and fingers: forward, right, yaw, pitch. A finger that is held asks as long as it is, as a stick does. */
  #sticks() {
    const stick = this.#pad();
    for (const touch of this.touches.values()) {
      const [x, y] = this.#deflection(touch);
      const [across, along] = touch.role === "move" ? [1, 0] : [2, 3];
      stick[across] += x;
      stick[along] -= y;
    }
    return stick.map((value) => Math.max(-1, Math.min(1, value)));
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
