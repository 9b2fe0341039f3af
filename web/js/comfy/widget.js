// The editor as a widget of ComfyUI's canvas.

import { addElement, allNodes, captureGraph, hideTooltip, removeWidget } from "./frontend.js";
import { sharpnessOf } from "../drawing/theme.js";
import { Editor } from "../editor/editor.js";
import { forwardToCanvas } from "./canvas_events.js";
import { watchFirstFrame } from "./first_frame.js";
import { presetStore } from "./preset_store.js";
import { showWarnings } from "./warnings.js";
import { words } from "../../live/words.mjs";

export const WIDGET_TYPE = "LINGBOT_CAMERA_EDITOR";
const HEIGHT = 480; // of the widget at least; editor.css holds the same for Nodes 2.0
const WIDTH = 440; // of a new node
const LEAST_WIDTH = 420; // of any node; below it the fields would have no room for their numbers
const SHARPEN_MS = 300;
const PROMOTED = "camera editor", PROMOTED_MS = 500; // the name of an editor on a subgraph's node, which no field has

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

/** An editor in ComfyUI's page. @param {string} html  the text of editor.html @param {string} initial  its document */
function makeEditor(html, initial, onCommit) {
  const editor = new Editor(html, initial, { onCommit, presetStore });
  editor.element.append(stylesheet());
  keepUndo(editor.element);
  forwardToCanvas(editor.element);
  return editor;
}

/** Has the widget of an editor behave on its node. */
function settle(editor, node, widget) {
  keepShown(editor, node, widget);
  keepNodeWidth(widget);
  hideTooltip(widget);
  node.setSize([Math.max(node.size[0], WIDTH), node.size[1]]);
}

/**
 * Puts an editor on a node, as ComfyUI's getCustomWidgets asks.
 * @param {string} html  the text of editor.html
 * @param {string} initial  the document of a new node
 */
export function addEditor(html, node, name, initial) {
  const editor = makeEditor(html, initial, captureGraph);
  const value = { getValue: () => editor.text, setValue: (text) => editor.load(text) };
  const widget = addElement(node, name, WIDGET_TYPE, editor.element, { ...value, getMinHeight: () => HEIGHT }, true);
  settle(editor, node, widget);
  keepLeastWidth(node);
  return { widget, minWidth: WIDTH, minHeight: HEIGHT };
}

/** The field of an editor on the node of a subgraph, where it is promoted. */
const promotedField = (node) => node.widgets?.find(({ type, element }) => type === WIDGET_TYPE && !element);

/** Puts an editor below a promoted field, whose value is saved and queued, until the field is gone. */
function addPromoted(html, node, field) {
  const commit = () => { field.value = editor.text; captureGraph(); };
  const editor = makeEditor(html, field.value, commit), options = { hideOnZoom: false, getMinHeight: () => HEIGHT };
  const widget = addElement(node, PROMOTED, `${WIDGET_TYPE}_PROMOTED`, editor.element, options);
  widget.label = words("camera editor");
  let before = field.value;
  const timer = setInterval(() => {
    if (!promotedField(node)) removeWidget(node, widget);
    else if (field.value !== before && field.value !== editor.text) editor.load(field.value); // an undo, another tab
    before = field.value;
  }, PROMOTED_MS);
  widget.onRemove = () => clearInterval(timer);
  settle(editor, node, widget);
  node.setSize([node.size[0], Math.max(node.size[1], node.computeSize()[1])]);
}

/** Shows an editor from now on wherever its field is promoted to the node of a subgraph, which ComfyUI leaves blank. */
export function showPromoted(html) {
  setInterval(() => {
    for (const node of allNodes().filter(({ subgraph }) => subgraph)) {
      const field = promotedField(node);
      if (field && !node.widgets.some(({ name }) => name === PROMOTED)) addPromoted(html, node, field);
    }
  }, PROMOTED_MS);
}
