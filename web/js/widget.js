// Puts the editor on the string input with widgetType LINGBOT_CAMERA_EDITOR; gives a new preview node room to be read.

import { api } from "../../../scripts/api.js";
import { app } from "../../../scripts/app.js";
import { Editor } from "./editor.js";

const HEIGHT = 480, WIDTH = 440;
const beside = (name) => new URL(`./${name}`, import.meta.url);

/** The picture file that reaches an IMAGE input of the node, as a URL; empty when it is not a loaded file. */
export function firstFrameUrl(node, hops = 8) {
  const file = node?.widgets?.find(({ name }) => name === "image")?.value;
  if (typeof file === "string" && file) {
    const [, path, type = "input"] = file.match(/^(.*?)(?: \[(input|output|temp)\])?$/), parts = path.split("/");
    return api.apiURL(`/view?${new URLSearchParams({ filename: parts.pop(), subfolder: parts.join("/"), type })}`);
  }
  const link = node?.inputs?.find((input) => input.type === "IMAGE" && input.link != null)?.link;
  const origin = hops > 0 && link != null && node.graph?.getNodeById(node.graph.getLink(link)?.origin_id);
  return origin ? firstFrameUrl(origin, hops - 1) : "";
}

/** ComfyUI zooms the graph from a touch listener above every widget; two fingers in the editor are the editor's. */
window.addEventListener("touchmove", (event) => {
  if (event.target.closest?.(".lbw-editor")) event.stopPropagation();
}, true);

const captureGraph = () => app.extensionManager.workflow.activeWorkflow?.changeTracker?.captureCanvasState();

function addEditor(html, node, name, [, { default: initial }]) {
  const editor = new Editor(html, initial, captureGraph), { element } = editor;
  element.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: beside("editor.css") }));
  // ComfyUI undoes the graph on Ctrl+Z from a listener on the window, before the editor hears of the key, unless the
  // focused element's `type` says textarea. The editor has its own undo, so everything in it that takes focus says so.
  for (const focusable of [element, ...element.querySelectorAll("[tabindex], button, select")]) {
    Object.defineProperty(focusable, "type", { value: "textarea" });
  }
  const access = { getValue: () => editor.text, setValue: (text) => editor.load(text), getMinHeight: () => HEIGHT };
  const widget = node.addDOMWidget(name, "LINGBOT_CAMERA_EDITOR", element, access), { onRemove } = widget;
  const watch = setInterval(() => editor.setPicture(firstFrameUrl(node)), 500);
  widget.onRemove = () => {
    clearInterval(watch);
    onRemove?.call(widget);
  };
  node.setSize([Math.max(node.size[0], WIDTH), node.size[1]]);
  return { widget, minWidth: WIDTH, minHeight: HEIGHT };
}

const html = await (await fetch(beside("editor.html"))).text();

app.registerExtension({
  name: "lingbotworld.CameraEditor",
  nodeCreated: (node) => node.comfyClass === "LingBotWorldCameraPreview" && node.setSize([580, 530]),
  getCustomWidgets: () => ({ LINGBOT_CAMERA_EDITOR: (node, name, spec) => addEditor(html, node, name, spec) }),
});
