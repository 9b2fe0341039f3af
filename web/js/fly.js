// Flying: held keys and mouse looks move a camera frame by frame, as the Keys node does (camera/keys.py).

import { aboutAxis, add, clamp, multiply, normalize, poseAt, rotate, scale, toAngles } from "./math.js";

const MOVE = 0.05, TURN = 2, LOOK_LIMIT = 4, PITCH_LIMIT = 85; // units a frame, degrees a frame by key and by mouse

/** Turns by yaw about the world's y and pitch about the camera's x; a pitch that would cross the limit is dropped. */
function turn(quaternion, yaw, pitch) {
  const now = toAngles(quaternion)[1], next = Math.abs(now + pitch);
  const tilt = next <= PITCH_LIMIT || next < Math.abs(now) ? pitch : 0;
  return normalize(multiply(multiply(aboutAxis([0, 1, 0], yaw), quaternion), aboutAxis([1, 0, 0], tilt)));
}

const onGround = ([x, , z]) => scale([x, 0, z], 1 / (Math.hypot(x, z) + 1e-6));

/** The pose one frame later under the held keys and a look of [yaw, pitch] degrees. */
export function step({ position, quaternion }, held, look = [0, 0]) {
  const along = (plus, minus) => Number(held.has(plus)) - Number(held.has(minus));
  const turned = turn(quaternion, along("l", "j") * TURN + look[0], along("i", "k") * TURN + look[1]);
  const forward = scale(onGround(rotate(turned, [0, 0, 1])), along("w", "s") * MOVE);
  const right = scale(onGround(rotate(turned, [1, 0, 0])), along("d", "a") * MOVE);
  return { position: add(position, add(forward, right)), quaternion: turned };
}

export class Flight {
  /** Starts at a pose. With `room`, the frames there are, every frame is recorded from the first input on. */
  constructor(pose, fps, room = 0) {
    Object.assign(this, { fps, room, poses: [pose], held: new Set(), look: [0, 0], before: pose, pose, phase: 0 });
  }

  get recording() { return this.room > 0; }
  get finished() { return this.recording && this.poses.length >= this.room; }
  lookBy(yaw, pitch) { this.look = [this.look[0] + yaw, this.look[1] + pitch]; }
  /** Lets `seconds` pass; returns whether anything is under way. */
  advance(seconds) {
    const active = this.held.size > 0 || Math.hypot(...this.look) > 0.01;
    if (!active && this.before === this.pose && this.poses.length === 1) return false;
    this.phase += Math.min(seconds, 0.25) * this.fps;
    for (; this.phase >= 1 && !this.finished; this.phase -= 1) this.#tick();
    return true;
  }

  #tick() {
    const look = this.look.map((degrees) => clamp(degrees, -LOOK_LIMIT, LOOK_LIMIT));
    const idle = this.held.size === 0 && look.every((degrees) => degrees === 0);
    this.look = this.look.map((degrees, i) => degrees - look[i]);
    this.before = this.pose;
    if (!idle) this.pose = step(this.pose, this.held, look);
    if (this.recording) this.poses.push(this.pose);
  }

  /** Where the camera is between the last two frames, so that flying looks smooth at any screen rate. */
  get shown() { return poseAt([{ ...this.before, frame: 0 }, { ...this.pose, frame: 1 }], this.phase); }
}
