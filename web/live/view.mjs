// A walk on a page: the picture, the figures over it, and the line of buttons below.

import { Connection, GIVEN_UP, WALK_OVER } from "./connection.mjs";
import { Input, isTyping } from "./input.mjs";
import { playsH264, Player } from "./player.mjs";
import { Quality } from "./quality.mjs";
import { Steps } from "./steps.mjs";

const BACK_SECONDS = 2, MOST_ANSWERS = 2000;
const BRIEFLY = 2500; // milliseconds that words stay over the picture
export const LONG = 10000;
const percentile = (values, share) => [...values].sort((a, b) => a - b)[Math.min(values.length - 1, Math.floor(share * values.length))];

/**
 * @typedef {object} Place  what a view is in
 * @property {Document | ShadowRoot} root  with a .stage and a .bar; keys and clicks in it are the view's
 * @property {(reason: string) => void} left  the walk is over
 * @property {(message: object, again: boolean) => void} [started]  the server has told what the walk is; again if a
 *   connection that was lost is taken up
 * @property {Record<string, () => void>} [commands]  of further buttons, or in place of the view's own
 */

export class View {
  /** @param {Place} place */
  constructor(place) {
    this.place = place;
    this.stage = place.root.querySelector(".stage");
    this.bar = place.root.querySelector(".bar");
    this.canvas = this.stage.querySelector("canvas");
    this.commands = { ...this.#ownCommands(), ...place.commands };
    this.end = new AbortController();
    this.player = new Player(this.canvas, (frame) => this.#seen(frame));
    this.input = new Input(this.stage, (kind, payload) => this.connection?.send(kind, payload), place.root, this.end.signal);
    this.#forget();
    const { signal } = this.end;
    place.root.addEventListener("click", ({ target }) => this.commands[target.closest?.("[data-command]")?.dataset.command]?.(), { signal });
    place.root.addEventListener("keydown", (event) => this.#key(event), { signal });
    this.bar.addEventListener("submit", (event) => this.#prompted(event), { signal });
    this.bar.addEventListener("click", (event) => this.#clicked(event), { signal });
    this.timer = setInterval(() => this.#figures(), 500);
    this.show("begin");
  }

  /** Walks. @param {object} init @param {URL} address @param {import("./connection.mjs").Codec} codec */
  walk(init, address, codec) {
    this.connection?.close();
    this.player.clear();
    this.#forget();
    this.#figures();
    this.connection = new Connection(init, address, codec, {
      frames: (header, payload) => {
        if (performance.now() > this.said) this.say();
        this.player.add(header, payload);
      },
      status: (message) => this.#status[message.content]?.(message),
      failed: (reason) => this.#failed(reason),
      closed: (reason) => this.leave(WALK_OVER.test(reason) ? this.#over : reason),
    });
    this.show("walk");
    this.say("The world is made ...");
    this.canvas.focus();
  }

  /** Begins anew, in the same connection. @param {object} init  what is not as before */
  restart(init) {
    if (this.connection?.send("restart", init)) this.steps.sent(0);
  }

  /** The walk ends. */
  leave(reason = "") {
    this.connection?.close();
    this.connection = null;
    this.say();
    this.show("begin");
    this.place.left(reason);
  }

  /** The view is gone for good, and may have gone by mistake: its walk pauses, and another view may take it up. */
  close() {
    this.connection?.close(GIVEN_UP);
    clearInterval(this.timer);
    this.end.abort();
    this.player.close();
  }

  /** @param {"begin" | "walk"} state */
  show(state) {
    this.stage.dataset.state = state;
    if (state !== "walk") {
      this.input.letGo(); // a key that comes up later is not heard
      if (this.place.root.pointerLockElement === this.canvas) document.exitPointerLock();
    }
    this.input.active = state === "walk";
    for (const element of this.bar.elements) element.disabled = state !== "walk";
    const touch = matchMedia("(pointer: coarse)").matches;
    this.stage.querySelectorAll(".stick").forEach((stick) => { stick.hidden = !touch; });
  }

  /** Says it over the picture, for so many milliseconds at least: later frames take it away. */
  say(text = "", stays = 0) {
    this.said = performance.now() + stays;
    this.stage.querySelector(".notice").textContent = text;
  }

  /** What was measured. */
  get measures() {
    const { answers, first, format, facts, figures } = this;
    return {
      first_frame_s: first / 1000, keys: answers.length,
      key_to_pixel_p50_s: (percentile(answers, 0.5) ?? 0) / 1000,
      key_to_pixel_p95_s: (percentile(answers, 0.95) ?? 0) / 1000,
      key_to_pixel_most_s: Math.max(0, ...answers) / 1000,
      frames_a_second: this.player.rate, stalls: this.player.stalls, format, walk: facts, server: figures,
    };
  }

  #forget() {
    Object.assign(this, { facts: null, figures: {}, answers: [], quality: null, first: 0, began: performance.now() });
    Object.assign(this, { steps: new Steps(), unsent: false });
    this.#pauseShown(false);
  }

  #seen(frame) {
    this.steps.seen(frame.chunk);
    this.first ||= performance.now() - this.began;
    this.answers = [...this.answers, ...(this.connection?.seen(frame.event) ?? [])].slice(-MOST_ANSWERS);
  }

  #status = {
    started: (message) => {
      const again = this.facts !== null;
      this.facts = message;
      this.player.fps = message.fps;
      this.#sentAsAsked(this.connection.init, message);
      this.#figure("window", `window ${message.window}+${message.sink}, chunk ${message.chunk}`);
      this.steps.forget();
      this.#pauseShown(false);
      if (this.unsent) this.say("The prompt in the line was not sent. Say it again.", LONG);
      this.unsent = false;
      this.place.started?.(message, again);
      this.input.tellAll(again);
    },
    waiting: ({ place }) => this.say(`Somebody walks here. You are number ${place} in line.`),
    figures: (message) => {
      this.figures = message;
      this.#adapt(message);
      if (message.paused !== undefined) this.#pauseShown(message.paused);
    },
    paused: () => { this.#pauseShown(true); this.say("Paused. Press a key to go on.", Infinity); },
    resumed: () => this.#pauseShown(false),
    prompt: ({ text }) => this.say(`Now: ${text}`, BRIEFLY),
    back: ({ chunk }) => { this.steps.done(chunk); this.player.clear(); },
    restarted: ({ folder }) => { this.facts = { ...this.facts, folder }; this.steps.done(0); this.player.clear(); },
    lost: () => this.say(`The connection is lost. It is taken up again ...${this.unsent ? ` ${UNSENT}` : ""}`),
    kept: ({ reason }) => this.say(reason, LONG),
    failed: ({ reason }) => this.#failed(reason),
    ended: () => this.leave(this.#over),
  };

  #failed(reason) {
    this.steps.forget();
    this.say(reason, LONG);
  }

  #pauseShown(paused) {
    this.paused = paused;
    if (!paused && this.said === Infinity) this.say(); // that it is paused
    const button = this.bar.querySelector('[data-command="pause"]');
    button.setAttribute("aria-pressed", paused);
    button.textContent = paused ? "Go on" : "Pause";
  }

  /** What does not arrive in time is sent smaller, and what does larger again. */
  #adapt(figures) {
    const output = this.quality?.judge(figures);
    if (!output) return;
    this.format = output.realtime_output_format;
    this.connection?.send("output", output);
  }

  /** Frames come as the init asks, on a connection that is taken up again too. */
  async #sentAsAsked({ realtime_output_format: format, output_compression: quality }, { width }) {
    this.format = format;
    this.quality = null;
    this.quality = new Quality(format, quality, await playsH264(), width);
  }

  #figure(name, text) {
    this.stage.querySelector(`[data-figure="${name}"]`).textContent = text;
  }

  #figures() {
    const { figures, answers } = this, gigabytes = (bytes) => (bytes / 1e9).toFixed(1);
    this.#figure("rate", this.player.rate.toFixed(1));
    const recent = answers.slice(-100);
    this.#figure("latency", recent.length ? `${Math.round(percentile(recent, 0.5))} / ${Math.round(percentile(recent, 0.95))}` : "-");
    this.#figure("busy", figures.busy === undefined ? "" : `busy ${Math.round(100 * figures.busy)} %`);
    this.#figure("gpu", figures.gpu_total ? `${gigabytes(figures.gpu_used)} of ${gigabytes(figures.gpu_total)} GB` : "");
  }

  #ownCommands() {
    return {
      pause: () => this.connection?.send(this.paused ? "resume" : "pause"),
      back: () => {
        const chunk = 4 * (this.facts?.chunk ?? 1) / this.player.fps;
        const target = this.steps.before(Math.ceil(BACK_SECONDS / chunk));
        if (this.connection?.send("back", target)) this.steps.sent(target);
      },
      restart: () => this.restart({}),
      full: () => this.#full(),
      leave: () => this.leave(this.#over),
    };
  }

  /** What is said of a walk that ends, as it is wished for. */
  get #over() {
    return `The walk is over.${this.facts ? ` What was walked is kept in ${this.facts.folder}.` : ""}`;
  }

  #full() {
    const whole = this.place.root.host ?? document.documentElement;
    const no = () => this.say("This browser shows no page in full screen.", LONG);
    if (document.fullscreenElement) document.exitFullscreen();
    else if (whole.requestFullscreen) whole.requestFullscreen().catch(no);
    else no();
  }

  #key(event) {
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey && !event.repeat;
    const onButton = event.target instanceof Element && event.target.closest("button, summary, a, input");
    const command = this.commands[SHORT[event.code]];
    if (!this.input.active || !plain || isTyping(event.target) || (onButton && event.code === "Space") || !command) return;
    event.preventDefault();
    command();
  }

  /** Who clicks in the bar goes on walking: keys are the view's again. Who uses it by the keyboard stays there. */
  #clicked({ detail, target }) {
    const byMouse = detail > 0;
    if (byMouse && this.input.active && !target.closest(".prompt")) this.canvas.focus();
  }

  #prompted(event) {
    event.preventDefault();
    const { prompt, refresh } = this.bar;
    if (prompt.value.trim() && !this.connection?.send("prompt", { text: prompt.value, refresh: refresh.checked })) {
      this.unsent = true;
      this.say(UNSENT, LONG);
    }
    this.canvas.focus();
  }
}

const UNSENT = "The prompt is not sent; its words stay in the line.";
const SHORT = { Space: "pause", Backspace: "back", KeyR: "restart", KeyO: "picture", KeyF: "full" };
