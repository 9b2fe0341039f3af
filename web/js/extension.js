// Registers with ComfyUI, which imports every file below web/; all others only define things.

import { language, registerExtension } from "./comfy/frontend.js";
import { shortenNames } from "./comfy/file_names.js";
import { showTranslations } from "./comfy/labels.js";
import { explainPrepareImage } from "./comfy/prepare_image.js";
import { addLiveView } from "./comfy/live_view.js";
import { showTexts, showTextsAgain } from "./comfy/node_text.js";
import { drawPreview } from "./comfy/preview.js";
import { addQuantizeButton, addToyButton } from "./comfy/make_buttons.js";
import { watchRuns } from "./comfy/runs.js";
import { addUpload } from "./comfy/upload.js";
import { keepView } from "./comfy/views.js";
import { addEditor, showPromoted, WIDGET_TYPE } from "./comfy/widget.js";
import { speak } from "../live/words.mjs";

const NEW_NODES = [
  drawPreview, explainPrepareImage, addUpload, addToyButton, addQuantizeButton, shortenNames, keepView,
  (node) => isOurs(node) && showTranslations(node),
];

const isOurs = (node) => node.comfyClass?.startsWith("LingBotWorld");

/** ComfyUI zooms the graph from a touch listener above every widget; fingers in editors and views are theirs. */
function keepTouches(event) {
  if (event.target.closest?.(".lbw-editor, .lbw-live")) event.stopPropagation();
}

/** ComfyUI would show an editor's tooltip over it, or over the node beside it. The node's help page has the text. */
function hideTooltips(definitions) {
  for (const { input } of Object.values(definitions)) {
    for (const [, options] of Object.values(input?.required ?? {})) {
      if (options?.widgetType === WIDGET_TYPE) options.tooltip = "";
    }
  }
}

const textOf = async (file) => (await fetch(new URL(file, import.meta.url))).text();
const spoken = speak(language());
const [html, live] = await Promise.all([...["./editor.html", "../live/index.html"].map(textOf), spoken]);

window.addEventListener("touchmove", keepTouches, true);
registerExtension({
  name: "lingbotworld.CameraEditor",
  addCustomNodeDefs: hideTooltips,
  setup: () => [watchRuns, showTexts, () => showPromoted(html)].forEach((begin) => begin()),
  refreshComboInNodes: () => speak(language()), // of another language: ComfyUI then makes all nodes anew
  afterConfigureGraph: showTextsAgain,
  loadedGraphNode: (node) => isOurs(node) && showTranslations(node),
  nodeCreated: (node) => [...NEW_NODES, (each) => addLiveView(live, each)].forEach((add) => add(node)),
  getCustomWidgets: () => ({
    [WIDGET_TYPE]: (node, name, [, options]) => addEditor(html, node, name, options.default),
  }),
});
