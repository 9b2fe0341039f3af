// Finds the size of the video that the camera is for, and how the first frame is brought to it.

import { nodeBefore, sourceOfLink } from "./graph.js";

/** @typedef {import("../drawing/scene.js").Video} Video */

const PREPARE_IMAGE = "LingBotWorldPrepareImage";
const CELL = 16; // pixels that a side of the video is a multiple of
const FITS = { stretch: "fill", crop: "cover", pad: "contain" }; // the node's words in those of CSS

const widgetValue = (node, name) => node.widgets?.find((widget) => widget.name === name)?.value;

/** The number in a node's field, or that the node linked to the field holds. */
function numberIn(node, name) {
  const input = node.inputs?.find((candidate) => candidate.name === name);
  const source = input && sourceOfLink(node.graph, input.link);
  const value = source ? source.node.widgets?.[0]?.value : widgetValue(node, name);
  return Number.isFinite(value) ? value : undefined;
}

/** The sides that geometry.output_geometry gives an image of an aspect on an area of pixels. */
function officialAspect(area, aspect) {
  const floored = (side) => Math.floor(side / CELL) * CELL;
  return floored(Math.sqrt(area * aspect)) / floored(Math.sqrt(area / aspect));
}

/** What Prepare Image makes of a picture. @returns {Video} */
function preparedVideo(node, pictureAspect) {
  const area = String(widgetValue(node, "size")).match(/^(\d+)\*(\d+)$/);
  const aspect = area
    ? officialAspect(area[1] * area[2], pictureAspect)
    : numberIn(node, "width") / numberIn(node, "height");
  return { aspect: aspect || pictureAspect, fit: FITS[widgetValue(node, "fit")] ?? "fill" };
}

/** The nodes that an output of the node reaches, and those before them that make their conditioning. */
function nodesAfter(node) {
  const links = (node.outputs ?? []).flatMap((output) => output.links ?? []);
  const targets = links.map((id) => node.graph.getNodeById(node.graph.getLink(id)?.target_id));
  return targets.filter(Boolean).flatMap((target) => [target, nodeBefore(target, ["CONDITIONING"])]).filter(Boolean);
}

/** What the node that makes the video's latent, such as core's WanImageToVideo, crops the image to; or null. */
function croppedVideo(node) {
  const makesVideo = (candidate) => widgetValue(candidate, "length") !== undefined;
  for (const candidate of nodesAfter(node).filter(makesVideo)) {
    const aspect = numberIn(candidate, "width") / numberIn(candidate, "height");
    if (aspect > 0) return { aspect, fit: "cover" };
  }
  return null;
}

/**
 * The video of an editor node; null where its size is not known.
 * @param {any} node
 * @param {any[]} imageNodes  that the image comes through, nearest first
 * @param {number} pictureAspect  width over height of the file that is shown
 * @returns {Video | null}
 */
export function videoOf(node, imageNodes, pictureAspect) {
  const prepare = imageNodes.find(({ type }) => type === PREPARE_IMAGE);
  return prepare ? preparedVideo(prepare, pictureAspect) : croppedVideo(node);
}
