// Keeps Prepare Image honest: fields that do not count are hidden, and a line says what the picture will become.

import { addElement } from "./frontend.js";
import { loadedPicture } from "./picture.js";
import { preparedSize, widgetNamed } from "./video_size.js";
import { words } from "../../live/words.mjs";

const NODE = "LingBotWorldPrepareImage";
const EXPLICIT = "width and height";
const FORMER_SIZES = { // how workflows that were saved earlier name the sizes
  "480*832": "832x480, in the image's shape",
  "720*1280": "1280x720, in the image's shape",
  "240*416": "416x240, in the image's shape",
};
const CHECK_MS = 400;
const SAME_SHAPE = 0.02; // sides floored to multiples of 16 differ by as much from the image's own shape

/** Both renderers: the classic one asks the widget, Nodes 2.0 its options. */
function setHidden(node, widget, hidden) {
  if (widget.hidden === hidden) return;
  widget.hidden = hidden;
  widget.options.hidden = hidden;
  const all = [...node.widgets];
  node.widgets = all.slice(1); // Nodes 2.0 looks at the widgets again when their number changes
  node.widgets = all;
  node.setSize([node.size[0], Math.max(node.computeSize()[1], hidden ? 0 : node.size[1])]);
  node.setDirtyCanvas(true, true);
}

const percent = (share) => `${Math.round(100 * share)} %`;

/** What `fit` does to a picture of one aspect (width over height) on its way to another, in words. */
function change(from, to, fit) {
  const ratio = to / from;
  if (Math.abs(ratio - 1) < SAME_SHAPE) return "";
  const isWider = ratio > 1, larger = percent((isWider ? ratio : 1 / ratio) - 1);
  const lost = percent(isWider ? 1 - 1 / ratio : 1 - ratio);
  const inEachFit = isWider ? {
    crop: words(", {lost} of its height cut", { lost }),
    pad: words(", black at the sides"),
    stretch: words(", stretched {larger} wider", { larger }),
  } : {
    crop: words(", {lost} of its width cut", { lost }),
    pad: words(", black above and below"),
    stretch: words(", stretched {larger} taller", { larger }),
  };
  return inEachFit[fit] ?? inEachFit.stretch;
}

/** The line on the node. @param {{width: number, height: number} | null} picture */
function story(node, picture) {
  const made = preparedSize(node, picture ? picture.width / picture.height : NaN);
  if (!made?.width) return words("the size is known once the image is: it takes the image's shape");
  const size = `${made.width}x${made.height}`;
  if (!picture) return words("video {size}", { size });
  const { width, height } = picture, aspects = [width / height, made.width / made.height];
  const changed = change(...aspects, widgetNamed(node, "fit")?.value);
  return `${words("{width}x{height} becomes {size}", { width, height, size })}${changed}`;
}

function addLine(node) {
  const element = document.createElement("div");
  element.className = "lbw-story";
  const looks = { fontSize: "12px", lineHeight: "18px", color: "var(--input-text, #ddd)", overflow: "hidden" };
  Object.assign(element.style, looks);
  const options = { getMinHeight: () => 56, getMaxHeight: () => 56, hideOnZoom: false };
  addElement(node, "will be", "LINGBOT_STORY", element, options).label = words("will be");
  return element;
}

/** Keeps a new node of any type as it is, unless it is Prepare Image. */
export function explainPrepareImage(node) {
  if (node.comfyClass !== NODE) return;
  const line = addLine(node);
  const refresh = () => {
    const size = widgetNamed(node, "size");
    size.value = FORMER_SIZES[size.value] ?? size.value;
    for (const name of ["width", "height"]) setHidden(node, widgetNamed(node, name), size.value !== EXPLICIT);
    line.textContent = story(node, loadedPicture(node));
  };
  refresh();
  const timer = setInterval(refresh, CHECK_MS), { onRemoved } = node;
  node.onRemoved = function () {
    clearInterval(timer);
    onRemoved?.call(this);
  };
}
