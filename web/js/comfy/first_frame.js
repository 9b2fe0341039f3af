// Finds the first frame: the picture file that reaches the editor node's image input.

import { api } from "../../../../scripts/api.js";
import { nodeBefore } from "./graph.js";

const MOST_NODES = 9; // followed up the links
const IMAGE_TYPES = ["IMAGE", "*"]; // a reroute's input takes any type

/** The address of a file as ComfyUI's file widgets write it, such as "folder/photo.png [output]". */
function fileUrl(file) {
  const [, path, type = "input"] = file.match(/^(.*?)(?: \[(input|output|temp)\])?$/);
  const parts = path.split("/");
  const query = new URLSearchParams({ filename: parts.pop(), subfolder: parts.join("/"), type });
  return api.apiURL(`/view?${query}`);
}

/** The picture file that a node loads, or that reaches its IMAGE input, as a URL; empty where there is none. */
export function firstFrameUrl(node, nodesLeft = MOST_NODES) {
  if (!node || nodesLeft === 0) return "";
  const file = node.widgets?.find(({ name }) => name === "image")?.value;
  if (typeof file === "string" && file) return fileUrl(file);
  return firstFrameUrl(nodeBefore(node, IMAGE_TYPES), nodesLeft - 1);
}
