// What the three views and the time line share: pointers, the wheel, and a canvas as sharp as the screen.

import { distance, mixVectors, scale, subtract } from "../math/vectors.js";

const MIDDLE = 1; // a pointer's button
const REACH = 11; // pixels around a symbol in which a pointer hits it
const SLACK = 3; // pixels that a pointer moves in a click, by a hand that shakes

/**
 * @typedef {import("../drawing/view.js").Pixel} Pixel
 * @typedef {(point: Pixel, delta: Pixel) => void} Drag  called with every move of the pointer
 */

/**
 * A canvas that shows the world around `center`. One pointer drags, two fingers pan and zoom. Once the editor has the
 * focus the wheel zooms and the middle button pans; before that both are the graph's. A subclass says in
 * `start(point, event)` what a drag does, in `view` how the world is seen, and in `draw(scene, theme)` what is drawn.
 */
export class Pane {
  #pointers = new Map();

  /** @param {import("../editor/editor.js").Editor} host @param {HTMLCanvasElement} canvas */
  constructor(host, canvas) {
    this.host = host;
    this.canvas = canvas;
    this.#listen();
  }

  #listen() {
    const on = (type, act) => this.canvas.addEventListener(type, (event) => {
      act(event, [event.offsetX, event.offsetY, 0]);
    });
    on("pointerdown", (event, point) => this.#press(event, point));
    on("pointermove", (event, point) => this.#move(event, point));
    on("pointerup", (event) => this.#release(event.pointerId));
    on("pointercancel", (event) => this.#release(event.pointerId));
    on("wheel", (event, point) => this.#wheel(event, point));
    on("contextmenu", (event) => {
      event.preventDefault(); // the right button pans
      event.stopPropagation(); // Nodes 2.0 would open the node's menu all the same
    });
  }

  /** Whether this view takes the wheel and the middle button. */
  get takesWheel() {
    return this.host.hasFocus;
  }

  #press(event, point) {
    if (event.button === MIDDLE) {
      if (!this.takesWheel) return;
      event.preventDefault();
      event.stopPropagation();
    }
    this.canvas.setPointerCapture(event.pointerId);
    this.#pointers.set(event.pointerId, point);
    const isFirst = this.#pointers.size === 1;
    this.drag = isFirst ? this.start(point, event) : () => {};
    this.pressed = isFirst ? point : null; // where a click is under way that is no drag yet
  }

  #move({ pointerId: id, buttons }, point) {
    const before = this.#pointers.get(id);
    if (!before || distance(point, before) === 0) return; // a move that browsers repeat when the layout changes
    if (buttons === 0) { // let go where the page did not hear of it, such as in another window's dialog
      this.#release(id);
      return;
    }
    const other = [...this.#pointers.values()].find((pointer) => pointer !== before);
    if (this.pressed && !other && distance(point, this.pressed) < SLACK) return;
    this.pressed = null;
    this.#pointers.set(id, point);
    if (other) this.#pinch(before, point, other);
    else this.drag(point, subtract(point, before));
    this.host.redraw(this);
  }

  /**
   * A drag that edits. It ends where the path changes or the playhead moves by other means, such as the keys of Undo.
   * @param {(point: Pixel) => void} act
   * @returns {Drag}
   */
  editing(act) {
    const { host } = this;
    let { state, frame } = host;
    return (point) => {
      if (host.state !== state || host.frame !== frame) return;
      act(point);
      ({ state, frame } = host);
    };
  }

  /** One of two fingers moves while the other is still. */
  #pinch(before, now, other) {
    this.pan(scale(subtract(now, before), 0.5));
    const spread = Math.max(1, distance(now, other)) / Math.max(1, distance(before, other));
    this.zoom(spread, mixVectors(now, other, 0.5));
  }

  #release(id) {
    if (this.#pointers.delete(id) && this.#pointers.size === 0) this.host.commit();
  }

  #wheel(event, point) {
    if (!this.takesWheel) return;
    event.preventDefault();
    event.stopPropagation();
    this.zoom(Math.exp(-event.deltaY * 0.0015), point);
    this.host.redraw(this);
  }

  /** Notes the canvas's size, so that drawing asks nothing of the layout; views also show all of a path again. */
  fit() {
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
  }

  /** The context, cleared, in CSS pixels and as sharp as the zoomed page shows it. */
  clear() {
    const { canvas, host: { sharpness } } = this;
    const context = canvas.getContext("2d");
    const width = Math.round(this.width * sharpness);
    const height = Math.round(this.height * sharpness);
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
    }
    context.setTransform(sharpness, 0, 0, sharpness, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.font = "10px system-ui, sans-serif";
    return context;
  }

  /** Moves what is shown by so many pixels. @param {Pixel} delta */
  pan(delta) {
    this.center = this.view.beside(this.center, scale(delta, -1));
  }

  /** Makes what is shown larger by a factor; the point under the pixel stays there. @param {Pixel} point */
  zoom(factor, point) {
    this.center = mixVectors(this.center, this.view.under(point, this.center), 1 - 1 / factor);
    this.range /= factor;
  }

  /** Whether a world point is drawn close to a pixel. */
  isNear(world, point) {
    const pixel = this.view.point(world);
    return pixel !== null && distance(pixel, point) < REACH;
  }

  /** The frame of the camera under a pixel: the one at the playhead comes first, then the keyframes. */
  cameraUnder(point) {
    if (this.isNear(this.host.pose.position, point)) return this.host.frame;
    return this.host.state.keyframes.find((key) => this.isNear(key.position, point))?.frame;
  }
}
