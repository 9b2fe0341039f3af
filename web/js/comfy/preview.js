// Camera Preview on the canvas: draws its path in the page's theme, without a run, when a field before it changes.

import { addElement, ask } from "./frontend.js";
import { viewUrl } from "./picture.js";
import { promptOf } from "./prompt.js";
import { watchQueued } from "./runs.js";
import { words } from "../../live/words.mjs";

const NODE = "LingBotWorldCameraPreview";
const ADDRESS = "/lingbot_world/camera_preview"; // of host/files/drawing.py
const SIZE = [680, 620]; // of a new node, in which its drawing can be read
const LEAST_HEIGHT = 240;
const CHECK_MS = 400;
const noPath = () => words("Connect a camera to see its path."), later = () => words("Drawn when the workflow runs.");
const NOTHING_DRAWN = 204, PICTURE = "image/png";
const pen = document.createElement("canvas").getContext("2d"); // turns any colour into #rrggbb

/** The picture and the line of words of which one is seen. */
function addFace(node) {
  const element = document.createElement("div"), picture = new Image(), line = document.createElement("div");
  element.className = "lbw-preview";
  element.append(picture, line);
  const box = { display: "flex", alignItems: "center", justifyContent: "center", overflow: "hidden" };
  Object.assign(element.style, { ...box, width: "100%", height: "100%", minHeight: `${LEAST_HEIGHT}px` });
  Object.assign(picture.style, { width: "100%", height: "100%", objectFit: "contain", display: "none" });
  Object.assign(line.style, { font: "13px sans-serif", color: "var(--input-text, #ddd)", padding: "8px" });
  picture.alt = words("the camera path");
  const options = { getMinHeight: () => LEAST_HEIGHT, hideOnZoom: false };
  const widget = addElement(node, "drawing", "LINGBOT_DRAWING", element, options);
  widget.label = words("drawing");
  return {
    widget,
    /** @param {string} url */
    show(url) {
      if (picture.src.startsWith("blob:")) URL.revokeObjectURL(picture.src);
      Object.assign(picture, { src: url });
      Object.assign(picture.style, { display: "block" });
      line.textContent = "";
    },
    /** @param {string} text */
    say(text) {
      Object.assign(picture.style, { display: "none" });
      line.textContent = text;
    },
  };
}

/** Asks the server for a drawing and shows it, unless the fields have changed again by then. */
async function draw(face, asked, isCurrent) {
  const headers = { "Content-Type": "application/json" };
  const answer = await ask(ADDRESS, { method: "POST", headers, body: JSON.stringify(asked) });
  if (answer.status === NOTHING_DRAWN) {
    if (isCurrent()) face.say(later());
  } else if (answer.headers.get("Content-Type") === PICTURE) {
    const picture = await answer.blob();
    if (isCurrent()) face.show(URL.createObjectURL(picture));
  } else {
    const { error } = await answer.json();
    if (isCurrent()) face.say(error);
  }
}

/** Whether the page is light: front-ends have no common mark of it, but all of them say which colour a text has. */
function isLight() {
  pen.fillStyle = "#ffffff";
  pen.fillStyle = getComputedStyle(document.body).getPropertyValue("--input-text").trim();
  return parseInt(pen.fillStyle.slice(1, 3), 16) < 128;
}

const hasCamera = (node) => node.inputs?.some(({ name, link }) => name === "camera" && link != null);

/** What the drawing depends on, as text; null without a camera, empty where only a run can tell. */
function recipeOf(node) {
  if (!hasCamera(node)) return null;
  const asked = node.graph && promptOf(node);
  return asked ? JSON.stringify(asked) : "";
}

/** Keeps a new node of any type as it is, unless it is Camera Preview. */
export function drawPreview(node) {
  if (node.comfyClass !== NODE) return;
  const face = addFace(node);
  let before = null, drawn = null, lit = isLight(); // recipes of the last look and of what is shown; its theme
  let made = null; // what a run of the recipe drew, in both themes
  node.setSize(SIZE);
  const showMade = () => face.show(viewUrl(lit && made.light?.[0] || made.drawing[0]));
  const refresh = () => {
    const recipe = recipeOf(node), light = isLight(), settled = recipe === before;
    before = recipe;
    if (!settled || (recipe === drawn && light === lit)) return;
    if (recipe !== drawn) made = null;
    drawn = recipe;
    lit = light;
    const isCurrent = () => drawn === recipe && lit === light && !made; // a run may have drawn it meanwhile
    if (made) showMade();
    else if (recipe) draw(face, { ...JSON.parse(recipe), light }, isCurrent).catch((error) => face.say(error.message));
    else face.say(recipe === null ? noPath() : later());
  };
  const timer = setInterval(refresh, CHECK_MS), { onRemoved, onExecuted } = node;
  const isOfThis = watchQueued(face.widget, () => recipeOf(node));
  face.say(noPath());
  const take = async (output) => {
    if (!output?.drawing?.length || !await isOfThis()) return;
    before = drawn = recipeOf(node);
    lit = isLight();
    made = output;
    showMade();
  };
  node.onExecuted = function (output) {
    take(output);
    onExecuted?.call(this, output);
  };
  node.onRemoved = function () {
    clearInterval(timer);
    onRemoved?.call(this);
  };
}
