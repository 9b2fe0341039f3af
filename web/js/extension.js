// Registers with ComfyUI, which imports every file below web/; all others only define things.

import { app } from "../../../scripts/app.js";
import { addEditor, WIDGET_TYPE } from "./comfy/widget.js";

const PREVIEW_SIZE = [580, 530]; // in which a new preview node can be read

/** ComfyUI zooms the graph from a touch listener above every widget; two fingers in the editor are the editor's. */
function keepTouches(event) {
  if (event.target.closest?.(".lbw-editor")) event.stopPropagation();
}

function enlargePreview(node) {
  if (node.comfyClass === "LingBotWorldCameraPreview") node.setSize(PREVIEW_SIZE);
}

const html = await (await fetch(new URL("./editor.html", import.meta.url))).text();

window.addEventListener("touchmove", keepTouches, true);
app.registerExtension({
  name: "lingbotworld.CameraEditor",
  nodeCreated: enlargePreview,
  getCustomWidgets: () => ({
    [WIDGET_TYPE]: (node, name, [, options]) => addEditor(html, node, name, options.default),
  }),
});
