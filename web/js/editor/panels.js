// Panels over the views: "json" with the document's text, "presets" with moves, "ask" with a question about recording.

/** Opens and closes panels; one at a time is open. */
export class Panels {
  /** @param {import("./editor.js").Editor} editor */
  constructor(editor) {
    this.editor = editor;
    this.text = editor.find(".lbw-json textarea");
  }

  /** The open panel, or null. @returns {HTMLElement | null} */
  get current() {
    return this.editor.find(".lbw-panel:not([hidden])");
  }

  /** @param {string} name */
  toggle(name) {
    if (this.editor.find(`.lbw-${name}`) === this.current) this.close();
    else this.open(name);
  }

  /** Opens a panel and gives the focus to the first thing in it. */
  open(name) {
    this.close();
    const panel = this.editor.find(`.lbw-${name}`);
    panel.hidden = false;
    this.#fill();
    panel.querySelector("textarea, button").focus({ preventScroll: true });
  }

  #fill() {
    this.text.value = this.editor.text.replaceAll('{"frame"', '\n{"frame"');
    this.filled = this.text.value;
  }

  /** Shows the newest text of a path that was edited meanwhile, unless someone has begun to write another one. */
  draw() {
    if (this.current && this.text.value === this.filled) this.#fill();
  }

  close() {
    const { current, editor } = this;
    if (!current) return;
    const hadFocus = current.contains(document.activeElement);
    current.hidden = true;
    if (hadFocus) editor.element.focus({ preventScroll: true });
  }
}
