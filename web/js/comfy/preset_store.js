// Keeps the user's own moves where ComfyUI keeps what belongs to a user, so that every browser has them.

import { loadUserFile, saveUserFile } from "./frontend.js";
import { words } from "../../live/words.mjs";

const FILE = "lingbot_world_camera_moves.json";
const NOT_FOUND = 404;

/** @type {import("../editor/presets.js").PresetStore} */
export const presetStore = {
  async load() {
    const answer = await loadUserFile(FILE);
    if (answer.status === NOT_FOUND) return {};
    const { ok, status, statusText: reason } = answer;
    if (!ok) throw new Error(words("ComfyUI answered {status} {reason}", { status, reason }));
    return answer.json();
  },

  async save(moves) {
    await saveUserFile(FILE, JSON.stringify(moves));
  },
};
