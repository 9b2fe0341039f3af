// Flying: held keys and mouse looks move a camera frame by frame, as the Keys node does (camera/moves/keys.py).

import { aboutAxis, multiply, normalize, rotate, toAngles } from "./math/quaternions.js";
import { poseAt } from "./math/spline.js";
import { add, clamp, scale } from "./math/vectors.js";

const UNITS_PER_FRAME = 0.05;
const KEY_DEGREES_PER_FRAME = 2;
const MOUSE_DEGREES_PER_FRAME = 4;
const PITCH_LIMIT = 85;
const LONGEST_PAUSE = 0.25; // seconds: a page that slept longer does not fly on blindly

/** @typedef {import("./math/spline.js").Pose} Pose */

/** Turns by yaw about the world's y, by pitch about the camera's x; a pitch that would cross the limit is dropped. */
function turn(quaternion, yaw, pitch) {
  const before = toAngles(quaternion)[1];
  const after = Math.abs(before + pitch);
  const allowed = after <= PITCH_LIMIT || after < Math.abs(before);
  const turned = multiply(aboutAxis([0, 1, 0], yaw), quaternion);
  return normalize(multiply(turned, aboutAxis([1, 0, 0], allowed ? pitch : 0)));
}

/** A direction's unit vector on the ground. */
const onGround = ([x, , z]) => scale([x, 0, z], 1 / (Math.hypot(x, z) + 1e-6));

/**
 * The pose one frame later under the held keys and a look of [yaw, pitch] degrees.
 * @type {(pose: Pose, held: Set<string>, look?: number[]) => Pose}
 */
export function step({ position, quaternion }, held, look = [0, 0]) {
  const direction = (plus, minus) => Number(held.has(plus)) - Number(held.has(minus));
  const yaw = direction("l", "j") * KEY_DEGREES_PER_FRAME + look[0];
  const pitch = direction("i", "k") * KEY_DEGREES_PER_FRAME + look[1];
  const turned = turn(quaternion, yaw, pitch);
  const forward = scale(onGround(rotate(turned, [0, 0, 1])), direction("w", "s") * UNITS_PER_FRAME);
  const right = scale(onGround(rotate(turned, [1, 0, 0])), direction("d", "a") * UNITS_PER_FRAME);
  return { position: add(position, add(forward, right)), quaternion: turned };
}

/** A flight under way. */
export class Flight {
  /**
   * Starts at a pose. With `room`, the number of frames there are, every frame is recorded from the first input on.
   * @param {Pose} pose
   * @param {number} fps
   */
  constructor(pose, fps, room = 0) {
    this.fps = fps;
    this.room = room;
    this.poses = [pose]; // the recording
    this.held = new Set(); // keys
    this.look = [0, 0]; // degrees of yaw and pitch that the mouse asked for and that are still to be turned
    this.before = pose; // of the frame before
    this.pose = pose; // of the newest frame
    this.phase = 0; // part of the next frame that has passed
  }

  get recording() {
    return this.room > 0;
  }

  get finished() {
    return this.recording && this.poses.length >= this.room;
  }

  /** Where the camera is between the last two frames, so that flying looks smooth at any screen rate. */
  get shown() {
    return poseAt([{ ...this.before, frame: 0 }, { ...this.pose, frame: 1 }], this.phase);
  }

  /** @param {number} yaw @param {number} pitch degrees, turned over the next frames */
  lookBy(yaw, pitch) {
    this.look = [this.look[0] + yaw, this.look[1] + pitch];
  }

  /** Lets `seconds` pass; returns whether anything is under way. */
  advance(seconds) {
    const steered = this.held.size > 0 || Math.hypot(...this.look) > 0.01;
    if (!steered && this.before === this.pose && this.poses.length === 1) return false;
    this.phase += Math.min(seconds, LONGEST_PAUSE) * this.fps;
    for (; this.phase >= 1 && !this.finished; this.phase -= 1) this.#flyOneFrame();
    return true;
  }

  #flyOneFrame() {
    const look = this.look.map((degrees) => clamp(degrees, -MOUSE_DEGREES_PER_FRAME, MOUSE_DEGREES_PER_FRAME));
    const idle = this.held.size === 0 && look.every((degrees) => degrees === 0);
    this.look = this.look.map((degrees, i) => degrees - look[i]);
    this.before = this.pose;
    if (!idle) this.pose = step(this.pose, this.held, look);
    if (this.recording) this.poses.push(this.pose);
  }
}
