// A walk on a page: the picture, what is over it, and the line of buttons below.

import { Clip } from "./clip.mjs";
import { Connection, GIVEN_UP, WALK_OVER } from "./connection.mjs";
import { Events } from "./events.mjs";
import { Fading } from "./fading.mjs";
import { Figures } from "./figures.mjs";
import { Input, isTyping } from "./input.mjs";
import { Maze } from "./maze.mjs";
import { Panels } from "./panels.mjs";
import { Picture } from "./picture.mjs";
import { playsH264, Player } from "./player.mjs";
import { Quality } from "./quality.mjs";
import { Steps } from "./steps.mjs";
import { words } from "./words.mjs";

const BACK_SECONDS = 2;
const BRIEFLY = 2500; // milliseconds that words stay over the picture
export const LONG = 10000;

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
    this.end = new AbortController();
    const { signal } = this.end;
    this.input = new Input(this.stage, (kind, payload) => this.#steer(kind, payload), place.root, signal);
    this.picture = new Picture(this.stage, this.input, (late) => this.measured.turned(late));
    this.player = new Player(this.canvas, (frame) => this.#seen(frame), (now, elapsed) => this.picture.tick(now, elapsed));
    this.measured = new Figures(this.stage, this.player);
    this.clip = new Clip();
    const locked = () => place.root.pointerLockElement === this.canvas;
    this.fading = new Fading([this.stage, this.bar], this.bar, () => this.paused || !this.input.active, locked, signal);
    this.panels = new Panels(this, signal);
    this.events = new Events(this.bar, (name) => this.connection?.send("event", name));
    this.commands = { ...this.#ownCommands(), ...this.panels.commands, ...place.commands };
    this.#forget();
    place.root.addEventListener("click", ({ target }) => this.commands[target.closest?.("[data-command]")?.dataset.command]?.(), { signal });
    place.root.addEventListener("keydown", (event) => this.#key(event), { signal });
    this.bar.addEventListener("submit", (event) => this.#prompted(event), { signal });
    this.bar.addEventListener("click", (event) => this.#clicked(event), { signal });
    this.timer = setInterval(() => this.measured.show(), 500);
    this.show("begin");
  }

  /** Walks. @param {object} init @param {URL} address @param {import("./connection.mjs").Codec} codec */
  walk(init, address, codec) {
    this.connection?.close();
    this.player.clear();
    this.stage.removeAttribute("data-seen");
    this.#forget();
    this.connection = new Connection(init, address, codec, {
      frames: (header, payload) => this.#came(header, payload),
      status: (message) => this.#status[message.content]?.(message),
      failed: (reason) => this.#failed(reason),
      closed: (reason) => this.leave(WALK_OVER.test(reason) ? this.#over : reason),
    });
    this.show("walk");
    this.say(words("Making the first frames ..."));
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
    this.input.tellAll(false);
    for (const element of this.bar.elements) element.disabled = state !== "walk";
    const touch = matchMedia("(pointer: coarse)").matches;
    this.stage.querySelectorAll(".stick").forEach((stick) => { stick.hidden = !touch; });
    this.fading.wake();
  }

  /** Says it over the picture, for so many milliseconds at least: later frames take it away. */
  say(text = "", stays = 0) {
    this.said = performance.now() + stays;
    this.stage.querySelector(".notice").textContent = text;
  }

  /** The text over the picture. */
  get notice() {
    return this.stage.querySelector(".notice").textContent;
  }

  /** What was measured. */
  get measures() {
    return this.measured.measures(this.format, this.facts);
  }

  #forget() {
    Object.assign(this, { facts: null, quality: null, steps: new Steps(), unsent: false, format: undefined });
    this.measured.clear();
    this.clip.clear();
    this.picture.clear();
    this.panels.begin();
    this.#pauseShown(false);
  }

  #came(header, payload) {
    if (performance.now() > this.said) this.say();
    this.clip.keep(header, payload, this.player.fps);
    this.player.add(header, payload);
  }

  #seen(frame) {
    this.steps.seen(frame.chunk);
    this.stage.dataset.seen = "";
    this.maze?.paint(this.player.context, frame.camera);
    this.measured.seen(frame, this.connection?.seen(frame.event) ?? []);
    this.picture.seen(frame, this.measured.latency);
    this.panels.seen(frame);
  }

  #steer(kind, payload) {
    this.panels.steered(payload);
    return this.connection?.send(kind, payload);
  }

  #status = {
    started: (message) => {
      const again = this.facts !== null;
      this.facts = message;
      this.player.fps = message.fps;
      this.input.runs = message.speed !== undefined;
      this.picture.began(message);
      this.#sentAsAsked(this.connection.init, message);
      const sizes = words("window {window}+{sink}, chunk {chunk}", message);
      this.measured.set("window", message.preview ? words("{sizes}, preview", { sizes }) : sizes);
      this.#map(message);
      this.panels.started(message);
      this.events.show(message.events, message.active);
      this.steps.forget();
      this.#pauseShown(false);
      if (this.unsent) this.say(words("The prompt was not sent. Send it again."), LONG);
      this.unsent = false;
      this.place.started?.(message, again);
      this.input.tellAll(again);
    },
    waiting: ({ place }) => this.say(words("Somebody is walking here. You are number {place} in line.", { place })),
    figures: (message) => {
      this.measured.server = message;
      this.#adapt(message);
      if (message.paused !== undefined) this.#pauseShown(message.paused);
    },
    paused: () => { this.#pauseShown(true); this.say(words("Paused. Press a key to go on."), Infinity); },
    resumed: () => this.#pauseShown(false),
    still: () => this.player.rest(),
    drift: ({ reason }) => this.say(reason, LONG),
    stuck: ({ reason }) => this.say(reason, BRIEFLY),
    found: ({ seconds: exact }) => {
      if (this.maze) this.maze.map.found = true;
      const seconds = Math.round(exact);
      this.say(words("You found the golden crate in {seconds} seconds. R begins again.", { seconds }), LONG);
    },
    prompt: ({ text, events }) => { this.events.mark(events); this.say(words("Now: {text}", { text }), BRIEFLY); },
    events: ({ events }) => this.events.mark(events),
    back: ({ chunk }) => this.#cut(chunk),
    restarted: ({ folder }) => { this.facts = { ...this.facts, folder }; this.#cut(0); this.#map({ map: this.facts.map && { ...this.facts.map, found: false } }); this.panels.begin(); },
    lost: () => this.say(`${words("The connection is lost. Reconnecting ...")} ${this.unsent ? unsent() : ""}`.trim()),
    kept: ({ reason }) => this.say(reason, LONG),
    failed: ({ reason }) => this.#failed(reason),
    // What has come is still played.
    ended: () => { this.connection.close(); setTimeout((its) => this.connection === its && this.leave(this.#over), 1000 * this.#chunkSeconds, this.connection); },
  };

  /** The walls and the crate of a world whose map is known. */
  #map({ map }) {
    this.maze = this.panels.map.maze = map ? new Maze({ ...map }, this.facts) : null;
    const goal = this.stage.querySelector(".hold .goal");
    if (goal) goal.hidden = !map || map.found;
  }

  /** The walk goes on from where so many chunks were made. */
  #cut(chunk) {
    this.steps.done(chunk);
    this.player.clear();
    this.clip.cut(chunk);
    this.picture.clear();
    this.panels.map.cut(chunk);
  }

  #failed(reason) {
    this.steps.forget();
    this.say(reason, LONG);
  }

  #pauseShown(paused) {
    if (paused !== this.paused) { this.player.rest(); this.fading.wake(); }
    this.paused = this.picture.paused = paused;
    if (!paused && this.said === Infinity) this.say(); // that it is paused
    const button = this.bar.querySelector('[data-command="pause"]');
    button.setAttribute("aria-pressed", paused);
    button.textContent = paused ? words("Go on") : words("Pause");
  }

  /** What does not arrive in time is sent smaller, and what does larger again. */
  #adapt(figures) {
    const output = this.quality?.judge(figures);
    if (!output) return;
    this.format = output.realtime_output_format;
    this.connection?.send("output", output);
  }

  get #chunkSeconds() { return 4 * (this.facts?.chunk ?? 1) / this.player.fps; }
  /** Frames come as the init asks, on a connection that is taken up again too. */
  async #sentAsAsked({ realtime_output_format: format, output_compression: quality }, { width }) {
    this.format = format;
    this.quality = null;
    this.quality = new Quality(format, quality, await playsH264(), width);
  }

  #ownCommands() {
    return {
      pause: () => this.connection?.send(this.paused ? "resume" : "pause"),
      back: () => {
        const target = this.steps.before(Math.ceil(BACK_SECONDS / this.#chunkSeconds));
        if (this.connection?.send("back", target)) this.steps.sent(target);
      },
      restart: () => this.restart({}),
      leave: () => this.leave(this.#over),
    };
  }

  /** What is said of a walk that ends, as it is wished for. */
  get #over() {
    const { folder } = this.facts ?? {};
    return folder ? words("The walk is over. It is kept in {folder}.", { folder }) : words("The walk is over.");
  }

  #key(event) {
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey && !event.repeat;
    const onButton = event.target instanceof Element && event.target.closest("button, summary, a, input");
    const command = this.commands[SHORT[event.code] ?? (event.key === "?" ? "help" : "")] ?? this.events.command(event.code);
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
      this.say(unsent(), LONG);
    } else if (prompt.value.trim() && refresh.checked) {
      this.say(words("Recomputing the past frames with this prompt ..."), LONG);
    }
    this.canvas.focus();
  }
}

const unsent = () => words("The prompt is not sent; it stays in the text line.");
const SHORT = {
  Space: "pause", Backspace: "back", KeyR: "ask", KeyO: "picture", KeyF: "full", KeyP: "photo", KeyC: "clip", KeyG: "figures",
  KeyM: "map", KeyT: "turn", KeyH: "help",
};
