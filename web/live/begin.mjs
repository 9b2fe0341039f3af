// Where a walk begins: a picture that is chosen, dropped, pasted or taken, and what it shows.

const KINDS = ["image/png", "image/jpeg", "image/webp"];
const LONGEST_SIDE = 2048; // larger pictures are scaled down before they are sent

export class Begin {
  /** @param {HTMLElement} root @param {(start: { image: Uint8Array | null, prompt: string }) => void} go */
  constructor(root, go) {
    this.root = root;
    this.image = null; // bytes; null is the server's own picture
    this.prompt = root.querySelector("textarea");
    this.pictures = root.querySelector(".pictures");
    this.video = root.querySelector("video");
    this.go = go;
    this.choice = null; // a promise while what was chosen last is read
    root.querySelector("[data-command=go]").addEventListener("click", () => this.#go());
    root.querySelector("[data-command=camera]").addEventListener("click", () => this.#camera());
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
        this.prompt.value = prompt;
        this.#choose(async () => ({ button, image: own ? null : await fetched(address) }));
      });
      this.pictures.append(button);
    });
    this.pictures.querySelector("button")?.click();
    return undefined;
  }

  /** A button that shows a picture. */
  #offered(address, name) {
    const button = Object.assign(document.createElement("button"), { type: "button", title: name });
    button.append(Object.assign(new Image(), { src: address, alt: name }));
    return button;
  }

  /** Reads a picture, and chooses it unless another is chosen meanwhile.
   * @param {() => Promise<{ button: HTMLElement, image: Uint8Array | null }>} read */
  async #choose(read) {
    const choice = (this.choice = read());
    try {
      const { button, image } = await choice;
      if (choice !== this.choice) return;
      this.image = image;
      if (this.refused) this.say("");
      for (const other of this.pictures.children) other.setAttribute("aria-pressed", other === button);
    } catch (error) {
      if (choice === this.choice) this.#refuse(`The picture cannot be used: ${error.message}.`);
    }
    if (choice === this.choice) this.choice = null;
  }

  /** Walks in what was chosen last, once it is read; nowhere if it cannot be. */
  async #go() {
    if (this.goes) return;
    this.goes = true;
    let read = true;
    while (this.choice) read = await this.choice.then(() => true, () => false);
    this.goes = false;
    if (read && !this.root.hidden) this.go({ image: this.image, prompt: this.prompt.value });
  }

  /** Offers a picture that the person has. */
  #use(file) {
    if (!file || this.root.hidden) return undefined;
    return this.#choose(async () => {
      if (!KINDS.includes(file.type)) throw new Error("that is no PNG, JPEG or WebP picture");
      const image = await smaller(file);
      const button = this.#offered(URL.createObjectURL(new Blob([image])), file.name ?? "picture");
      button.addEventListener("click", () => this.#choose(async () => ({ button, image })));
      this.pictures.prepend(button);
      return { button, image };
    });
  }

  async #camera() {
    this.say("");
    if (!navigator.mediaDevices) {
      this.say("The browser gives a camera only to pages on this machine, or by https.");
      return;
    }
    try {
      const stream = await navigator.mediaDevices.getUserMedia({ video: { width: 1280 } });
      Object.assign(this.video, { srcObject: stream, hidden: false });
      await this.video.play();
      await new Promise((resolve) => { setTimeout(resolve, 1500); });
      const bitmap = await createImageBitmap(this.video);
      stream.getTracks().forEach((track) => track.stop());
      this.video.hidden = true;
      await this.#use(new File([await drawn(bitmap)], "camera", { type: "image/jpeg" }));
    } catch (error) {
      this.say(`There is no camera that may be used (${error.message}).`);
    }
  }
}

async function fetched(address) {
  const response = await fetch(address).catch(() => { throw new Error("the server cannot be reached"); });
  if (!response.ok) throw new Error(`the server answers ${response.status}`);
  return new Uint8Array(await response.arrayBuffer());
}

async function smaller(file) {
  const bitmap = await createImageBitmap(file).catch(() => { throw new Error("it cannot be read"); });
  const small = Math.max(bitmap.width, bitmap.height) <= LONGEST_SIDE && file.size < 8e6;
  return new Uint8Array(await (small ? file : await drawn(bitmap)).arrayBuffer());
}

/** A JPEG of a bitmap, none of its sides longer than LONGEST_SIDE; white where it is transparent, as on the server. */
async function drawn(bitmap) {
  const scale = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.round(side * scale));
  if (!width || !height) throw new Error("it is too small or too narrow");
  const canvas = new OffscreenCanvas(width, height), context = canvas.getContext("2d");
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0, width, height);
  return canvas.convertToBlob({ type: "image/jpeg", quality: 0.92 });
}
