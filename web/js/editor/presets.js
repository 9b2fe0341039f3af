// The panel with preset moves and with those that the user has saved.

import { parse, serialize } from "../path/document.js";
import { PRESETS, withMove, withPreset } from "../path/presets.js";
import { words } from "../../live/words.mjs";

/**
 * @typedef {Record<string, string>} SavedMoves  documents as JSON, by name
 * @typedef {object} PresetStore  where the user's moves are kept
 * @property {() => Promise<SavedMoves>} load
 * @property {(moves: SavedMoves) => Promise<void>} save
 */

/** Shows moves as buttons, uses one that is pressed, and saves the editor's own. */
export class Presets {
  /** @param {import("./editor.js").Editor} editor @param {PresetStore} store */
  constructor(editor, store) {
    this.editor = editor;
    this.store = store;
    this.list = editor.find(".lbw-saved");
    this.name = editor.find(".lbw-presets input");
    this.name.addEventListener("keydown", (event) => event.key === "Enter" && this.save());
    const label = (name) => words(name.replaceAll("_", " "));
    const buttons = Object.keys(PRESETS).map((name) => this.#button(label(name), () => this.#use(name)));
    editor.find(".lbw-moves").append(...buttons);
  }

  #button(text, act, label = text) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.ariaLabel = label;
    button.addEventListener("click", act);
    return button;
  }

  #use(name) {
    this.#show(withPreset(this.editor.state, name));
  }

  #show(state) {
    this.editor.scrub(0);
    this.editor.edit(state);
    this.editor.fit();
    this.editor.panels.close();
  }

  /** Lists what the user has saved. */
  async refresh() {
    try {
      this.#list(await this.store.load());
    } catch (error) {
      this.editor.say(words("Your own moves cannot be read: {message}", error));
    }
  }

  #list(moves) {
    const rows = Object.entries(moves).map(([name, text]) => {
      const row = document.createElement("span");
      const use = this.#button(name, () => this.#show(withMove(this.editor.state, parse(text))));
      const forget = () => this.#change((saved) => delete saved[name]);
      row.append(use, this.#button("\u00d7", forget, words("Forget {name}", { name })));
      return row;
    });
    this.list.replaceChildren(...rows);
  }

  /** Saves the editor's move under the name that was typed. */
  async save() {
    const name = this.name.value.trim();
    const { editor } = this;
    if (!name) {
      editor.say(words("Type a name for the move first"));
      return;
    }
    if (!await this.#change((saved) => { saved[name] = serialize(editor.state); })) return;
    this.name.value = "";
    editor.say(words("Saved as {name}", { name }));
  }

  /**
   * Changes what is saved, and returns whether that worked. It is read again first: another editor may have saved.
   */
  async #change(act) {
    try {
      const moves = await this.store.load();
      act(moves);
      await this.store.save(moves);
      this.#list(moves);
      return true;
    } catch (error) {
      this.editor.say(words("Your own moves cannot be changed: {message}", error));
      return false;
    }
  }
}
