// The editor as a widget of ComfyUI's canvas.

import { addElement, captureGraph, hideTooltip } from "./frontend.js";
import { sharpnessOf } from "../drawing/theme.js";
import { Editor } from "../editor/editor.js";
import { forwardToCanvas } from "./canvas_events.js";
import { watchFirstFrame } from "./first_frame.js";
import { presetStore } from "./preset_store.js";
import { showWarnings } from "./warnings.js";

export const WIDGET_TYPE = "LINGBOT_CAMERA_EDITOR";
const HEIGHT = 480; // of the widget at least; editor.css holds the same for Nodes 2.0
const WIDTH = 440; // of a new node
const LEAST_WIDTH = 420; // of any node; below it the fields would have no room for their numbers
const SHARPEN_MS = 300;

function stylesheet() {
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = new URL("../editor.css", import.meta.url);
  return link;
}

/**
 * ComfyUI undoes the graph on Ctrl+Z from a listener on the window, before the editor hears of the key, unless the
 * focused element takes text: up to front-end 1.49 its `type` tells, later `isContentEditable` does. The editor has its
 * own undo, so everything in it that takes the focus says both.
 */
function keepUndo(element) {
  for (const focusable of [element, ...element.querySelectorAll("[tabindex], button, select")]) {
    Object.defineProperty(focusable, "type", { value: "textarea" });
    Object.defineProperty(focusable, "isContentEditable", { value: true });
  }
}

/** Has an editor drawn anew where the graph, or the browser's page, is zoomed; returns what ends that. */
function keepSharp(editor) {
  const timer = setInterval(() => {
    const { element, sharpness } = editor;
    if (element.clientWidth > 0 && sharpnessOf(element) !== sharpness) editor.redraw();
  }, SHARPEN_MS);
  return () => clearInterval(timer);
}

/** Has the editor show the node's first frame, and what is wrong with its path, until the widget is removed. */
function keepShown(editor, node, widget) {
  const { onRemove } = widget;
  const stops = [watchFirstFrame(editor, node, widget), showWarnings(editor), keepSharp(editor)];
  widget.onRemove = () => {
    for (const stop of stops) stop();
    onRemove?.call(widget);
  };
}

/**
 * ComfyUI's right-hand panel draws every widget of the selected node and writes the panel's width into the widget; the
 * classic renderer then shows the editor that wide. Without a width of its own a widget is as wide as its node.
 */
function keepNodeWidth(widget) {
  Object.defineProperty(widget, "width", { get: () => undefined, set: () => {} });
}

/** The classic renderer asks a widget for its least height only. */
function keepLeastWidth(node) {
  const { onResize } = node;
  node.onResize = function (size) {
    if (size[0] < LEAST_WIDTH) this.size = [LEAST_WIDTH, size[1]];
    onResize?.call(this, this.size);
  };
}

/**
 * Puts an editor on a node, as ComfyUI's getCustomWidgets asks.
 * @param {string} html  the text of editor.html
 * @param {string} initial  the document of a new node
 */
export function addEditor(html, node, name, initial) {
  const editor = new Editor(html, initial, { onCommit: captureGraph, presetStore });
  editor.element.append(stylesheet());
  keepUndo(editor.element);
  forwardToCanvas(editor.element);
  const value = { getValue: () => editor.text, setValue: (text) => editor.load(text) };
  const widget = addElement(node, name, WIDGET_TYPE, editor.element, { ...value, getMinHeight: () => HEIGHT }, true);
  keepShown(editor, node, widget);
  keepNodeWidth(widget);
  hideTooltip(widget);
  keepLeastWidth(node);
  node.setSize([Math.max(node.size[0], WIDTH), node.size[1]]);
  return { widget, minWidth: WIDTH, minHeight: HEIGHT };
}
