// Finds the size of the video that the camera is for, and how the first frame is brought to it.

import { linkOf } from "./frontend.js";
import { nodeBefore, sourceOfLink } from "./graph.js";

/** @typedef {import("../drawing/scene.js").Video} Video */

const PREPARE_IMAGE = "LingBotWorldPrepareImage";
const CELL = 16; // pixels that a side of the video is a multiple of
const SHAPE = "image's shape"; // in the name of a size that is an area
const FITS = { stretch: "fill", crop: "cover", pad: "contain" }; // the node's words in those of CSS

/** @returns {any} the widget of this name, if the node has one */
export const widgetNamed = (node, name) => node.widgets?.find((widget) => widget.name === name);

const widgetValue = (node, name) => widgetNamed(node, name)?.value;

/** The number in a node's field, or that the node linked to the field holds. */
function numberIn(node, name) {
  const input = node.inputs?.find((candidate) => candidate.name === name);
  const source = input && sourceOfLink(node.graph, input.link);
  const value = source ? source.node.widgets?.[0]?.value : widgetValue(node, name);
  return Number.isFinite(value) ? value : undefined;
}

/** The sides that geometry.output_geometry gives an image of an aspect on an area of pixels. */
function officialSize(area, aspect) {
  const floored = (side) => Math.floor(side / CELL) * CELL;
  const tallness = 1 / aspect; // the engine divides height by width; another order would round to other sides
  return { width: floored(Math.sqrt(area / tallness)), height: floored(Math.sqrt(area * tallness)) };
}

/** The size that Prepare Image gives a picture of an aspect. @returns {{width: number, height: number}} */
export function preparedSize(node, pictureAspect) {
  const size = String(widgetValue(node, "size")), sides = size.match(/(\d+)[x*](\d+)/)?.slice(1).map(Number);
  if (!sides) return { width: numberIn(node, "width"), height: numberIn(node, "height") };
  const isArea = size.includes("*") || size.includes(SHAPE); // earlier workflows write areas with a star
  return isArea ? officialSize(sides[0] * sides[1], pictureAspect) : { width: sides[0], height: sides[1] };
}

/** What Prepare Image makes of a picture. @returns {Video} */
function preparedVideo(node, pictureAspect) {
  const { width, height } = preparedSize(node, pictureAspect);
  return { aspect: width / height || pictureAspect, fit: FITS[widgetValue(node, "fit")] ?? "fill" };
}

/** The nodes that an output of the node reaches, and those before them that make their conditioning. */
function nodesAfter(node) {
  const { graph, outputs = [] } = node, links = outputs.flatMap((output) => output.links ?? []);
  const targets = links.map((id) => graph?.getNodeById(linkOf(graph, id)?.target_id));
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
