// Finds the first frame: the picture that reaches the editor node's image input.

import { api } from "../../../../scripts/api.js";
import { nodeBefore } from "./graph.js";
import { videoOf } from "./video_size.js";

const MOST_NODES = 12; // followed up the links
const IMAGE_TYPES = ["IMAGE", "*"]; // a reroute's input takes any type
const CHECK_MS = 500;

/** @type {(file: {filename: string, subfolder: string, type: string}) => string} */
const viewUrl = ({ filename, subfolder, type }) =>
  api.apiURL(`/view?${new URLSearchParams({ filename, subfolder, type })}`);

/** The address of a file as ComfyUI's file widgets write it, such as "folder/photo.png [output]". */
function fileUrl(file) {
  const [, path, type = "input"] = file.match(/^(.*?)(?: \[(input|output|temp)\])?$/);
  const parts = path.split("/");
  return viewUrl({ filename: parts.pop(), subfolder: parts.join("/"), type });
}

/** The nodes that the image comes through, nearest first. */
function imageNodes(node) {
  const nodes = [];
  let next = nodeBefore(node, IMAGE_TYPES);
  for (; next && nodes.length < MOST_NODES; next = nodeBefore(next, IMAGE_TYPES)) nodes.push(next);
  return nodes;
}

/** The picture that a node loads or shows, as a URL; empty where there is none. */
function pictureOf(node) {
  const file = node.widgets?.find(({ name }) => name === "image")?.value;
  if (typeof file === "string" && file) return fileUrl(file);
  return node.imgs?.[node.imageIndex ?? 0]?.src ?? "";
}

/** Changes when other nodes, or other settings of theirs, make the image. */
const recipe = (nodes) => JSON.stringify(nodes.map(({ id, widgets }) => [id, widgets?.map(({ value }) => value)]));

/**
 * Has an editor show the image of its node. Any node may make the image: its pixels are known once the workflow has
 * run; until then the nearest file on the way stands for it.
 * @param {import("../editor/editor.js").Editor} editor
 * @returns {() => void} ends it
 */
export function watchFirstFrame(editor, node) {
  let seen = null; // the image of the newest run, with its recipe
  const { onExecuted } = node;
  node.onExecuted = function (output) {
    const [file] = output?.first_frame ?? [];
    if (file) seen = { url: viewUrl(file), recipe: recipe(imageNodes(node)) };
    onExecuted?.call(this, output);
  };
  const timer = setInterval(() => {
    const nodes = imageNodes(node);
    const isCurrent = nodes.length > 0 && seen?.recipe === recipe(nodes);
    editor.setPicture(isCurrent ? seen.url : nodes.map(pictureOf).find(Boolean) ?? "");
    editor.setVideo(videoOf(node, isCurrent ? [] : nodes, editor.pictureAspect));
  }, CHECK_MS);
  return () => clearInterval(timer);
}
