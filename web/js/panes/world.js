// The 3D view: the world from outside, or through the camera.

import { niceStep } from "../drawing/scene.js";
import { Painter } from "../drawing/painter.js";
import { View } from "../drawing/view.js";
import { fromAngles, rotate } from "../math/quaternions.js";
import { add, clamp, RAD, subtract } from "../math/vectors.js";
import { Pane } from "./pane.js";
import { words } from "../../live/words.mjs";

const CARD_WIDTH = 416; // CSS pixels of .lbw-card before it is laid into the world
const ORBIT_DEGREES_PER_PIXEL = 0.4;
const START = { yaw: -38, pitch: -24 };

/** From outside the eye is `range` units away from `center` and a drag orbits; in flight a drag looks around. */
export class WorldPane extends Pane {
  fit(sizes) {
    super.fit();
    const onlyCanvasChanged = sizes === this.sizes;
    if (onlyCanvasChanged) return;
    const ahead = rotate(this.host.state.keyframes[0].quaternion, [0, 0, sizes.extent * 0.3]);
    this.sizes = sizes;
    this.center = add(sizes.center, ahead);
    this.range = sizes.extent * 3;
    this.yaw = START.yaw;
    this.pitch = START.pitch;
  }

  get view() {
    return this.host.inside ? this.#throughCamera() : this.#fromOutside();
  }

  #fromOutside() {
    const { width, height } = this;
    const quaternion = fromAngles(this.yaw, this.pitch);
    const position = subtract(this.center, rotate(quaternion, [0, 0, this.range]));
    return new View({ position, quaternion }, 1.1 * Math.min(width, height * 1.4), width, height);
  }

  #throughCamera() {
    const { width, height, host } = this;
    const frameWidth = Math.min(width * 0.94, height * 0.9 * host.aspect); // as .lbw-frame in editor.css
    const focal = frameWidth / 2 / Math.tan((host.state.fov_deg * RAD) / 2);
    return new View(host.pose, focal, width, height);
  }

  pan(delta) {
    if (!this.host.inside) super.pan(delta);
  }

  zoom(factor, point) {
    if (!this.host.inside) super.zoom(factor, point);
  }

  start(point, event) {
    if (this.host.flight) return (_, delta) => this.#look(delta);
    const keys = () => words("F flies from here, R records, C looks from outside again");
    if (this.host.inside) return () => this.host.say(keys());
    const frame = this.cameraUnder(point);
    if (frame !== undefined) this.host.scrub(frame);
    if (event.shiftKey || event.button > 0) return (_, delta) => this.pan(delta);
    return (_, delta) => this.#orbit(delta);
  }

  #look([dx, dy]) {
    const degrees = (pixels) => pixels / this.view.focal / RAD;
    this.host.flight?.lookBy(degrees(dx), degrees(-dy));
  }

  #orbit([dx, dy]) {
    this.yaw += dx * ORBIT_DEGREES_PER_PIXEL;
    this.pitch = clamp(this.pitch - dy * ORBIT_DEGREES_PER_PIXEL, -89, 89);
  }

  draw(scene, theme) {
    const { host } = this;
    const painter = new Painter(this.view, this.clear(), theme);
    this.#layCard(painter.view, scene);
    this.#drawGround(painter, scene);
    painter.path(scene);
    if (host.flight) painter.flown(host.flight.poses);
    painter.cameras(scene);
    if (!host.inside) painter.current(scene.camera(host.pose));
  }

  /** Lays the HTML element with the first frame into the world. */
  #layCard(view, scene) {
    const matrix = view.cssMatrix(scene.card, CARD_WIDTH, CARD_WIDTH / this.host.aspect);
    this.host.find(".lbw-card").style.transform = matrix;
  }

  /** The grid on the ground, and from outside a plumb line from every camera. */
  #drawGround(painter, { cameras, sizes: { center, ground, extent } }) {
    const foot = ([x, , z]) => [x, ground, z];
    painter.grid([0, 2], foot(center), niceStep(extent / 5), 10);
    if (!this.host.inside) painter.strokes(cameras.map(({ apex }) => [apex, foot(apex)]), painter.theme.axis);
  }
}
