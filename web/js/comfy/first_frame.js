// Finds the first frame: the picture that reaches the editor node's image input.

import { imageNodes, nearestPicture, viewUrl } from "./picture.js";
import { watchQueued } from "./runs.js";
import { videoOf } from "./video_size.js";

const CHECK_MS = 500;

/** Changes when other nodes, or other settings of theirs, make the image. */
const recipe = (nodes) => JSON.stringify(nodes.map(({ id, widgets }) => [id, widgets?.map(({ value }) => value)]));

/**
 * Has an editor show the image of its node. Any node may make the image: its pixels are known once the workflow has
 * run; until then the nearest file on the way stands for it.
 * @param {import("../editor/editor.js").Editor} editor
 * @param {any} widget  of the editor
 * @returns {() => void} ends it
 */
export function watchFirstFrame(editor, node, widget) {
  let seen = null; // the image of the newest run, with its recipe
  const { onExecuted } = node, now = () => recipe(imageNodes(node)), isOfThis = watchQueued(widget, now);
  const take = async ([file]) => {
    if (file && await isOfThis()) seen = { url: viewUrl(file), recipe: now() };
  };
  node.onExecuted = function (output) {
    take(output?.first_frame ?? []);
    onExecuted?.call(this, output);
  };
  const timer = setInterval(() => {
    const nodes = imageNodes(node);
    const isCurrent = nodes.length > 0 && seen?.recipe === recipe(nodes);
    editor.setPicture(isCurrent ? seen.url : nearestPicture(nodes));
    editor.setVideo(videoOf(node, isCurrent ? [] : nodes, editor.pictureAspect));
  }, CHECK_MS);
  return () => clearInterval(timer);
}
