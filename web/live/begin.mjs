// Where a walk begins: a picture that is chosen, dropped, pasted or taken, and what it shows.

import { Camera } from "./camera.mjs";
import { smaller } from "./scaled.mjs";
import { words } from "./words.mjs";

const KINDS = ["image/png", "image/jpeg", "image/webp"];
const ANY_PROMPT = "The place in the picture, seen by someone who walks through it."; // of whom says nothing

export class Begin {
  /**
   * @param {HTMLElement} root
   * @param {(start: { image: Uint8Array | null, prompt: string }) => void} walk
   * @param {(address: string) => void} show  shows the picture that is chosen
   */
  constructor(root, walk, show) {
    Object.assign(this, { root, walk, showPicture: show });
    this.image = null; // bytes; null is the server's own picture
    this.prompt = root.querySelector("textarea");
    this.pictures = root.querySelector(".pictures");
    this.camera = new Camera(root, (file) => this.#use(file), (text) => this.say(text));
    this.choice = null; // a promise while what was chosen last is read
    root.querySelector("[data-command=go]").addEventListener("click", () => this.go());
    root.querySelector("input[type=file]").addEventListener("change", ({ target }) => this.#use(target.files[0]));
    document.addEventListener("paste", ({ clipboardData }) => this.#use([...clipboardData.files][0]));
    document.addEventListener("dragover", (event) => { event.preventDefault(); root.classList.add("over"); });
    document.addEventListener("dragleave", () => root.classList.remove("over"));
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      root.classList.remove("over");
      this.#use([...event.dataTransfer.files][0]);
    });
    this.#examples();
  }

  /** Tells why there is no walk. */
  say(text) {
    this.refused = false;
    this.root.querySelector(".said").textContent = text;
  }

  /** Tells what is wrong with a picture, until another is chosen. */
  #refuse(text) {
    this.say(text);
    this.refused = true;
  }

  async #examples() {
    const response = await fetch("examples" + location.search);
    if (!response.ok) return this.say(await response.text());
    const examples = await response.json();
    examples.forEach(({ name, prompt, own }, index) => {
      const address = `example/${index}${location.search}`;
      const button = this.#offered(address, name);
      button.addEventListener("click", () => {
        this.#say(prompt);
        this.#choose(async () => ({ button, image: own ? null : await fetched(address) }));
      });
      this.pictures.append(button);
    });
    this.pictures.querySelector("button")?.click();
    return undefined;
  }

  /** What a picture shows goes into the line. One of a person's own has no words, and takes no other picture's. */
  #say(prompt) {
    this.prompt.value = this.offered = prompt;
  }

  /** A button that shows a picture. */
  #offered(address, name) {
    const button = Object.assign(document.createElement("button"), { type: "button", title: name });
    button.append(Object.assign(new Image(), { src: address, alt: name }));
    return button;
  }

  /** Reads a picture, and chooses it unless another is chosen meanwhile.
   * @param {() => Promise<{ button: HTMLElement, image: Uint8Array | null, silent?: boolean }>} read  silent: nothing
   *   is known of what it shows */
  async #choose(read) {
    const choice = (this.choice = read());
    try {
      const { button, image, silent } = await choice;
      if (choice !== this.choice) return;
      if (silent && this.prompt.value === this.offered) this.#say("");
      this.image = image;
      if (this.refused) this.say("");
      for (const other of this.pictures.children) other.setAttribute("aria-pressed", other === button);
      this.show();
    } catch (error) {
      if (choice === this.choice) this.#refuse(words("The image cannot be used: {message}.", error));
    }
    if (choice === this.choice) this.choice = null;
  }

  /** Shows what is chosen, as the walk will begin. */
  show() {
    const chosen = this.pictures.querySelector("[aria-pressed=true] img");
    if (chosen) this.showPicture(chosen.src);
  }

  /** Walks in what was chosen last, once it is read; nowhere if it cannot be. */
  async go() {
    if (this.goes || this.root.hidden || !(this.choice || this.pictures.querySelector("[aria-pressed=true]"))) return;
    this.goes = true;
    let read = true;
    while (this.choice) read = await this.choice.then(() => true, () => false);
    this.goes = false;
    if (!read || this.root.hidden) return;
    this.camera.close();
    this.walk({ image: this.image, prompt: this.prompt.value.trim() || (this.image ? ANY_PROMPT : "") });
  }

  /** Offers a picture that the person has. */
  #use(file) {
    if (!file || this.root.hidden) return undefined;
    return this.#choose(async () => {
      if (!KINDS.includes(file.type)) throw new Error(words("it is not a PNG, JPEG or WebP file"));
      const image = await smaller(file);
      const button = this.#offered(URL.createObjectURL(new Blob([image])), file.name ?? "");
      const chosen = { button, image, silent: true };
      button.addEventListener("click", () => this.#choose(async () => chosen));
      this.pictures.prepend(button);
      return chosen;
    });
  }
}

async function fetched(address) {
  const response = await fetch(address).catch(() => { throw new Error(words("the server cannot be reached")); });
  if (!response.ok) throw new Error(words("the server answers {status}", { status: response.status }));
  return new Uint8Array(await response.arrayBuffer());
}
