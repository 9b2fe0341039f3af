// Finds the picture that reaches a node: the file that a node before it loads, or what one has shown.

import { urlOf } from "./frontend.js";
import { nodeBefore } from "./graph.js";

const MOST_NODES = 12; // followed up the links
const THROUGH = "Reroute", BYPASSED = 4; // a node that changes nothing, and LiteGraph's mode of others that do not
const IMAGE_TYPES = ["IMAGE", "*"]; // a reroute's input takes any type
const pictures = new Map(); // by URL: an Image, loading or loaded
const made = new WeakMap(); // by node: the URL of the picture that its run made and the node does not show

/** Remembers the picture that a run of a node made. */
export const rememberPicture = (node, file) => { if (file) made.set(node, viewUrl(file)); };

/** @type {(file: {filename: string, subfolder: string, type: string}) => string} */
export const viewUrl = ({ filename, subfolder, type }) =>
  urlOf(`/view?${new URLSearchParams({ filename, subfolder, type })}`);

/** The address of a file as ComfyUI's file widgets write it, such as "folder/photo.png [output]". */
function fileUrl(file) {
  const [, path, type = "input"] = file.match(/^(.*?)(?: \[(input|output|temp)\])?$/);
  const parts = path.split("/");
  return viewUrl({ filename: parts.pop(), subfolder: parts.join("/"), type });
}

/** The nodes that the image comes through, nearest first. */
export function imageNodes(node) {
  const nodes = [];
  let next = nodeBefore(node, IMAGE_TYPES);
  for (; next && nodes.length < MOST_NODES; next = nodeBefore(next, IMAGE_TYPES)) nodes.push(next);
  return nodes;
}

/** The picture that a node loads or shows, as a URL; empty where there is none. */
function pictureOf(node) {
  const file = node.widgets?.find(({ name }) => name === "image")?.value;
  if (typeof file === "string" && file) return fileUrl(file);
  return node.imgs?.[node.imageIndex ?? 0]?.src ?? made.get(node) ?? "";
}

/** The URL of the nearest picture on the way to a node; empty where there is none. @param {any[]} nodes */
export const nearestPicture = (nodes) => nodes.map(pictureOf).find(Boolean) ?? "";

/** Size of the picture that reaches a node as a file has it; null while it is not known, and where another
 * node makes it, which may enlarge or crop it. */
export function loadedPicture(node) {
  const maker = imageNodes(node).find(({ type, mode }) => type !== THROUGH && mode !== BYPASSED);
  const url = maker ? pictureOf(maker) : "";
  if (!url) return null;
  if (!pictures.has(url)) pictures.set(url, Object.assign(new Image(), { src: url }));
  const { naturalWidth, naturalHeight } = pictures.get(url);
  return naturalWidth ? { width: naturalWidth, height: naturalHeight } : null;
}
