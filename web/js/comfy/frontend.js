// ComfyUI's front-end as the pack uses it. No other script of the pack imports ComfyUI's or reaches for its globals, so
// that another extension API is a second implementation of this file alone.

import { api } from "../../../../scripts/api.js";
import { app } from "../../../../scripts/app.js";

const REFRESH = "Comfy.RefreshNodeDefinitions"; // ComfyUI's command
const ALL_AT_ONCE = 1;

/** @param {object} extension  as ComfyUI's registerExtension takes it */
export const registerExtension = (extension) => app.registerExtension(extension);

// The server

/** Asks the server; `address` is one of the pack's routes. @returns {Promise<Response>} */
export const ask = (address, options) => api.fetchApi(address, options);

/** The URL of a route. @param {string} address */
export const urlOf = (address) => api.apiURL(address);

/** The id under which the server knows this page. */
export const pageId = () => api.clientId ?? "";

/** Calls a listener with `{detail}` of each message of a kind that the server sends. */
export const listen = (kind, listener) => api.addEventListener(kind, listener);

export const unlisten = (kind, listener) => api.removeEventListener(kind, listener);

/** A file of the user's. @returns {Promise<Response>} */
export const loadUserFile = (name) => api.getUserData(name);

export const saveUserFile = (name, text) =>
  api.storeUserData(name, text, { overwrite: true, stringify: false, throwOnError: true });

// The graph

/** The outermost graph of the workflow on the canvas. */
export const rootGraph = () => app.rootGraph ?? app.graph;

/** All graphs of the workflow, the outermost first. */
export function allGraphs() {
  const root = rootGraph();
  return [root, ...(root.subgraphs?.values() ?? [])];
}

/** Every node of the workflow, the nodes in subgraphs too. */
export const allNodes = () => allGraphs().flatMap((graph) => graph.nodes);

/** The graph that is on the canvas. */
export const redrawGraph = () => app.graph.setDirtyCanvas(true, true);

/** A new node, which is in no graph yet. @param {string} type */
export const createNode = (type) => window.LiteGraph.createNode(type);

/** The link of an id in a graph; undefined where there is none. */
export const linkOf = (graph, id) => (graph?.getLink ? graph.getLink(id) : graph?.links?.[id]) ?? undefined;

/** The open workflow, as an object to compare; undefined before one is open. */
export const openWorkflow = () => app.extensionManager?.workflow?.activeWorkflow;

/** Has ComfyUI notice that the workflow changed. */
export const captureGraph = () => openWorkflow()?.changeTracker?.captureCanvasState();

// Runs

/** Queues one node with what is before it. @returns {Promise<unknown>} */
export const queueNode = (id) => app.queuePrompt(0, ALL_AT_ONCE, [String(id)]);

/** Does what the key R does: reads the lists anew, and takes the marks of missing files off the nodes. */
export function refreshLists() {
  const { command } = app.extensionManager;
  return command?.execute ? command.execute(REFRESH) : app.refreshComboInNodes();
}

// The page

/** The language that the user chose, such as "ja". @returns {string} */
export const language = () => app.extensionManager.setting.get("Comfy.Locale");

/** A message that goes by itself. @param {"success" | "warn" | "error"} severity */
export const toast = (severity, summary, detail, life) =>
  app.extensionManager.toast.add({ severity, summary, detail, life });

/** Gives the canvas a wheel event, which zooms the graph. */
export const zoomCanvas = (event) => app.canvas.processMouseWheel(event);

/** Gives the canvas the press of a button, which pans the graph. */
export const pressCanvas = (event) => app.canvas.processMouseDown(event);

// Widgets

/** Adds an element to a node. A widget that is not `saved` is in no workflow and in no prompt. */
export function addElement(node, name, type, element, options, saved = false) {
  const widget = node.addDOMWidget(name, type, element, saved ? options : { serialize: false, ...options });
  if (!saved) widget.serialize = false;
  return widget;
}

/** Adds a button, which is neither saved nor queued. A workflow knows its name, which is English; the label is seen. */
export function addButton(node, name, label, press) {
  const button = node.addWidget("button", name, null, press, { serialize: false });
  Object.assign(button, { label, serialize: false });
  return button;
}

/** Has a widget show no tooltip, whichever place ComfyUI takes its text from: the definition, or a translation. */
export function hideTooltip(widget) {
  Object.defineProperty(widget, "tooltip", { get: () => undefined, set: () => {} });
}

export const removeWidget = (node, widget) => node.removeWidget(widget);

/** Sets a field, as a user would. */
export function setField(widget, value) {
  widget.value = value;
  widget.callback?.(value);
}
