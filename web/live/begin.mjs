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
    root.querySelector("[data-command=go]").addEventListener("click", () => go({ image: this.image, prompt: this.prompt.value }));
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
    this.root.querySelector(".said").textContent = text;
  }

  async #examples() {
    const response = await fetch("examples" + location.search);
    if (!response.ok) return this.say(await response.text());
    const examples = await response.json();
    examples.forEach(({ name, prompt, own }, index) => {
      const address = `example/${index}${location.search}`;
      this.pictures.append(this.#offered(address, name, async () => {
        this.image = own ? null : new Uint8Array(await (await fetch(address)).arrayBuffer());
        this.prompt.value = prompt;
      }));
    });
    this.pictures.querySelector("button")?.click();
    return undefined;
  }

  /** A button that chooses a picture. */
  #offered(address, name, choose) {
    const button = Object.assign(document.createElement("button"), { type: "button", title: name });
    button.append(Object.assign(new Image(), { src: address, alt: name }));
    button.addEventListener("click", async () => {
      await choose();
      for (const other of this.pictures.children) other.setAttribute("aria-pressed", other === button);
    });
    return button;
  }

  /** Offers a picture that the person has. */
  async #use(file) {
    if (!file || this.root.hidden) return;
    this.say("");
    try {
      if (!KINDS.includes(file.type)) throw new Error("that is no PNG, JPEG or WebP picture");
      const bytes = await smaller(file);
      const button = this.#offered(URL.createObjectURL(new Blob([bytes])), file.name ?? "picture", () => { this.image = bytes; });
      this.pictures.prepend(button);
      button.click();
    } catch (error) {
      this.say(`The picture cannot be used: ${error.message}.`);
    }
  }

  async #camera() {
    this.say("");
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
      this.say(`There is no camera that may be used (${error.message ?? "only on this machine, or by https"}).`);
    }
  }
}

async function smaller(file) {
  const bitmap = await createImageBitmap(file).catch(() => { throw new Error("it cannot be read"); });
  const small = Math.max(bitmap.width, bitmap.height) <= LONGEST_SIDE && file.size < 8e6;
  return new Uint8Array(await (small ? file : await drawn(bitmap)).arrayBuffer());
}

/** A JPEG of a bitmap, none of its sides longer than LONGEST_SIDE. */
async function drawn(bitmap) {
  const scale = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = new OffscreenCanvas(Math.round(bitmap.width * scale), Math.round(bitmap.height * scale));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.convertToBlob({ type: "image/jpeg", quality: 0.92 });
}
