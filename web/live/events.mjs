// What happens in the world: a button for each event, and the keys 1 to 9.

export class Events {
  /** @param {HTMLElement} bar @param {(name: string) => void} ask  begins or ends an event */
  constructor(bar, ask) {
    this.row = bar.querySelector(".events");
    this.ask = ask;
    this.row?.addEventListener("click", ({ target }) => { if (target.value) ask(target.value); });
  }

  /** @param {{ name: string, text: string, key?: string }[]} events @param {string[]} active  names of those that hold */
  show(events = [], active = []) {
    this.events = events;
    if (!this.row) return;
    this.row.hidden = !events.length;
    this.row.replaceChildren(...events.map(({ name, text, key }) => {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", value: name, title: text, textContent: key ? `${name} (${key})` : name });
      return button;
    }));
    this.mark(active);
  }

  /** @param {string[]} active */
  mark(active = []) {
    for (const button of this.row?.children ?? []) button.setAttribute("aria-pressed", active.includes(button.value));
  }

  /** The command of a key, where it is that of an event. @param {string} code @returns {(() => void) | undefined} */
  command(code) {
    const found = this.events?.find(({ key }) => key && (code === `Digit${key}` || code === `Numpad${key}`));
    return found && (() => this.ask(found.name));
  }
}
