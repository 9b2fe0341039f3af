// What the model will not follow of an editor's path, in the engine's words, as the path is edited.

import { ask } from "./frontend.js";

const ADDRESS = "/lingbot_world/camera_warnings"; // of host/files/drawing.py
const CHECK_MS = 400;

/** The engine's list for a document; none for one that it cannot read, of which the editor says so itself. */
async function warningsOf(text) {
  const answer = await ask(ADDRESS, { method: "POST", body: text });
  return answer.ok ? (await answer.json()).warnings : [];
}

/** Keeps the editor's line of warnings; returns what ends that. @param {import("../editor/editor.js").Editor} editor */
export function showWarnings(editor) {
  const line = editor.find(".lbw-warnings");
  let before = null, asked = null; // documents: of the last look, and of the last question
  const look = async () => {
    const { text } = editor, settled = text === before;
    before = text;
    if (!settled || text === asked || editor.element.clientWidth === 0) return;
    asked = text;
    const said = await warningsOf(text).catch(() => []); // a server that is gone says nothing
    if (text !== asked) return;
    line.textContent = said.join("\n");
    line.hidden = said.length === 0;
  };
  const timer = setInterval(look, CHECK_MS);
  return () => clearInterval(timer);
}
