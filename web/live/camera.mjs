// A picture by the camera: the one at the back where there are two, with a shutter.

import { drawn } from "./scaled.mjs";
import { words } from "./words.mjs";

export class Camera {
  /**
   * @param {HTMLElement} root  with the buttons, and a video that is the finder
   * @param {(file: File) => void} use  called with what was taken
   * @param {(text: string) => void} say
   */
  constructor(root, use, say) {
    Object.assign(this, { root, use, say, stream: null });
    this.video = root.querySelector("video");
    const on = (command, what) => root.querySelector(`[data-command="${command}"]`).addEventListener("click", what);
    on("camera", () => this.#open());
    on("shoot", () => this.#shoot());
    on("no-camera", () => this.close());
  }

  /** The camera is off. */
  close() {
    this.stream?.getTracks().forEach((track) => track.stop());
    this.stream = this.video.srcObject = null;
    this.#shown(false);
  }

  async #open() {
    this.say("");
    if (this.stream) return;
    if (!navigator.mediaDevices) {
      this.say(words("The browser gives a camera only to pages on this machine, or by https."));
      return;
    }
    try {
      const video = { facingMode: { ideal: "environment" }, width: { ideal: 1280 } };
      this.stream = await navigator.mediaDevices.getUserMedia({ video });
      this.video.srcObject = this.stream;
      this.#shown(true);
      await this.video.play();
      this.root.querySelector("[data-command=shoot]").focus();
    } catch (error) {
      this.close();
      this.say(words("No camera can be used ({message}).", error));
    }
  }

  async #shoot() {
    try {
      await this.video.play(); // of a shutter that is pressed early
      const bitmap = await createImageBitmap(this.video), picture = await drawn(bitmap);
      this.close();
      await this.use(new File([picture], words("camera"), { type: "image/jpeg" }));
    } catch (error) {
      this.say(words("The image could not be taken ({message}).", error));
    }
  }

  #shown(shown) {
    this.video.hidden = !shown;
    this.root.querySelector(".shooting").hidden = !shown;
  }
}
