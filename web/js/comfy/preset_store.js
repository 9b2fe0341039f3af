// Keeps the user's own moves where ComfyUI keeps what belongs to a user, so that every browser has them.

import { loadUserFile, saveUserFile } from "./frontend.js";

const FILE = "lingbot_world_camera_moves.json";
const NOT_FOUND = 404;

/** @type {import("../editor/presets.js").PresetStore} */
export const presetStore = {
  async load() {
    const answer = await loadUserFile(FILE);
    if (answer.status === NOT_FOUND) return {};
    if (!answer.ok) throw new Error(`ComfyUI answered ${answer.status} ${answer.statusText}`);
    return answer.json();
  },

  async save(moves) {
    await saveUserFile(FILE, JSON.stringify(moves));
  },
};
