// The editor as a widget of ComfyUI's canvas.

import { app } from "../../../../scripts/app.js";
import { Editor } from "../editor/editor.js";
import { firstFrameUrl } from "./first_frame.js";

export const WIDGET_TYPE = "LINGBOT_CAMERA_EDITOR";
const HEIGHT = 480;
const WIDTH = 440;
const PICTURE_CHECK_MS = 500;

/** Has ComfyUI notice that the workflow changed. */
const captureGraph = () => app.extensionManager.workflow.activeWorkflow?.changeTracker?.captureCanvasState();

function stylesheet() {
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = new URL("../editor.css", import.meta.url);
  return link;
}

/**
 * ComfyUI undoes the graph on Ctrl+Z from a listener on the window, before the editor hears of the key, unless the
 * focused element's `type` says textarea. The editor has its own undo, so everything in it that takes focus says so.
 */
function keepUndo(element) {
  for (const focusable of [element, ...element.querySelectorAll("[tabindex], button, select")]) {
    Object.defineProperty(focusable, "type", { value: "textarea" });
  }
}

/** Has the editor show the node's first frame, whatever it is connected to, until the widget is removed. */
function watchPicture(editor, node, widget) {
  const { onRemove } = widget;
  const timer = setInterval(() => editor.setPicture(firstFrameUrl(node)), PICTURE_CHECK_MS);
  widget.onRemove = () => {
    clearInterval(timer);
    onRemove?.call(widget);
  };
}

/**
 * Puts an editor on a node, as ComfyUI's getCustomWidgets asks.
 * @param {string} html  the text of editor.html
 * @param {string} initial  the document of a new node
 */
export function addEditor(html, node, name, initial) {
  const editor = new Editor(html, initial, captureGraph);
  editor.element.append(stylesheet());
  keepUndo(editor.element);
  const widget = node.addDOMWidget(name, WIDGET_TYPE, editor.element, {
    getValue: () => editor.text,
    setValue: (text) => editor.load(text),
    getMinHeight: () => HEIGHT,
  });
  watchPicture(editor, node, widget);
  node.setSize([Math.max(node.size[0], WIDTH), node.size[1]]);
  return { widget, minWidth: WIDTH, minHeight: HEIGHT };
}
