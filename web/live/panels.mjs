// What lies over the picture, and the commands that show it: figures, map, keys, menus, the question before a restart.

import { photo } from "./clip.mjs";
import { WayMap } from "./map.mjs";
import { download } from "./save.mjs";
import { words } from "./words.mjs";

const ASKED_MS = 6000; // that the question stays
const BRIEFLY = 2500, LONG = 10000; // milliseconds that words stay
const STORE = "lingbot-world live";

export class Panels {
  /** @param {import("./view.mjs").View} view @param {AbortSignal} signal */
  constructor(view, signal) {
    Object.assign(this, { view, stage: view.stage, bar: view.bar });
    this.map = new WayMap(this.#part(".map"));
    this.menus = [...this.bar.querySelectorAll(".menu")];
    const { root } = view.place, page = root.ownerDocument ?? root;
    page.addEventListener("pointerdown", (event) => this.#closeMenus(event.composedPath()), { signal });
    this.bar.addEventListener("focusin", (event) => this.#closeMenus(event.composedPath()), { signal });
    root.addEventListener("keydown", (event) => { if (event.code === "Escape") this.#escape(event); }, { signal, capture: true });
    this.bar.addEventListener("click", ({ target }) => { if (target.closest(".menu.save [data-command], .menu.save a")) this.#closeMenus([]); }, { signal });
    this.#restore();
  }

  commands = {
    figures: () => this.#toggle(".figures", "figures"),
    map: () => { this.#toggle(".map", "map"); this.map.draw(); },
    help: () => this.#toggle(".help", "help"),
    turn: () => this.#turnAtOnce(!this.view.picture.atOnce),
    ask: () => { if (this.asked) this.view.commands.again(); else this.#ask(true); },
    again: () => { this.commands.stay(); this.view.commands.restart(); },
    stay: () => { this.#ask(false); this.view.canvas.focus(); },
    full: () => this.#full(),
    photo: () => this.#save(words("photo"), photo(this.view.canvas)),
    clip: () => this.#clip(),
    measures: () => download("live.json", new Blob([JSON.stringify(this.view.measures, null, 1)])),
  };

  /** A walk begins, or begins anew. */
  begin() {
    this.map.clear();
    this.#ask(false);
    this.#part(".hold").hidden = false;
  }

  /** The server has told what the walk is. */
  started({ speed }) {
    this.stage.querySelectorAll(".runs").forEach((element) => { element.hidden = speed === undefined; });
  }

  /** A frame is seen. */
  seen({ chunk, camera }) {
    if (camera) this.map.seen(chunk, camera);
  }

  /** Something was asked of the camera. */
  steered(payload) {
    const asks = Array.isArray(payload) ? payload.some(Boolean) : payload?.transitions?.some(({ actions }) => actions.length);
    if (!asks) return;
    this.#part(".hold").hidden = true;
    this.#ask(false);
  }

  get asked() {
    return !this.#part(".ask").hidden;
  }

  #part(selector) {
    return this.stage.querySelector(selector);
  }

  #pressed(command, on) {
    this.bar.querySelector(`[data-command="${command}"]`)?.setAttribute("aria-pressed", on);
  }

  #toggle(selector, command) {
    const part = this.#part(selector), on = part.hidden;
    part.hidden = !on;
    this.#pressed(command, on);
    if (command === "help" && on) part.querySelector("button").focus(); else if (command === "help") this.view.canvas.focus();
    else this.#remember(command, on);
  }

  #turnAtOnce(on) {
    this.view.picture.atOnce = on;
    this.#pressed("turn", on);
    this.#remember("turn", on);
    this.view.say(on ? words("The image rotates at once.") : words("The image rotates with its next frame."), BRIEFLY);
  }

  /** Who asks by a button of the bar answers by the next one; who asks by a key, by the key. */
  #ask(shown) {
    clearTimeout(this.asking);
    const ask = this.#part(".ask"), { activeElement } = this.view.place.root;
    if (!shown && ask.contains(activeElement)) this.view.canvas.focus();
    ask.hidden = !shown;
    if (!shown) return;
    if (this.bar.contains(activeElement)) ask.querySelector("button").focus();
    this.asking = setTimeout(() => this.#ask(false), ASKED_MS);
  }

  #closeMenus(path) {
    for (const menu of this.menus) if (!path.includes(menu)) menu.open = false;
  }

  /** Escape closes what is open, and nothing else then. */
  #escape(event) {
    const open = this.menus.find((menu) => menu.open), help = this.#part(".help");
    if (!open && help.hidden && !this.asked) return;
    event.preventDefault();
    if (open) { open.open = false; open.querySelector("summary").focus(); }
    else if (!help.hidden) this.commands.help();
    else this.commands.stay();
  }

  #full() {
    const whole = this.view.place.root.host ?? document.documentElement;
    const no = () => this.view.say(words("This browser has no full screen."), LONG);
    if (document.fullscreenElement) document.exitFullscreen();
    else if (whole.requestFullscreen) whole.requestFullscreen().catch(no);
    else no();
  }

  async #clip() {
    if (this.recording) return;
    this.recording = true;
    this.view.say(words("Recording the last ten seconds. Keep this page open ..."), LONG);
    await this.#save(words("clip"), this.view.clip.save((context, camera) => this.view.maze?.paint(context, camera)));
    this.recording = false;
  }

  /** @param {string} what  in the reader's language @param {Promise<File>} made */
  async #save(what, made) {
    try {
      const file = await made;
      download(file.name, file);
      this.view.say(words("The {what} is saved.", { what }), BRIEFLY);
    } catch (error) {
      this.view.say(words("The {what} cannot be saved: {message}", { what, message: error.message }), LONG);
    }
  }

  /** What was shown the last time is shown again; a browser may keep nothing. */
  #restore() {
    let kept = {};
    try { kept = JSON.parse(localStorage.getItem(STORE)) ?? {}; } catch { /* then as at first */ }
    this.kept = { figures: kept.figures === true, map: kept.map === true, turn: kept.turn !== false };
    for (const name of ["figures", "map"]) { this.#part(`.${name}`).hidden = !this.kept[name]; this.#pressed(name, this.kept[name]); }
    this.view.picture.atOnce = this.kept.turn;
    this.#pressed("turn", this.kept.turn);
  }

  #remember(name, on) {
    this.kept[name] = on;
    try { localStorage.setItem(STORE, JSON.stringify(this.kept)); } catch { /* it is forgotten */ }
  }
}
