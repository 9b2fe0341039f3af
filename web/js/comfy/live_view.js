// The view of the node LingBot-World Live: the page of a walk, without its beginning, as a widget of ComfyUI's canvas.

import { addElement, ask, listen, openWorkflow, pageId, unlisten, urlOf } from "./frontend.js";
import { textCodec } from "../../live/connection.mjs";
import { View } from "../../live/view.mjs";
import { translate, words } from "../../live/words.mjs";
import { forwardToCanvas } from "./canvas_events.js";
import { imageNodes, loadedPicture, nearestPicture, viewUrl } from "./picture.js";
import { videoOf } from "./video_size.js";

const NODE = "LingBotWorldLive", TYPE = "LINGBOT_LIVE_VIEW";
const ADDRESS = "/lingbot_world/live"; // of host/sampling/live_route.py
const WALKS = "lingbot_world.walks", START = "lingbot_world.start"; // of host/sampling/live_view.py
const HEIGHT = 400, WIDTH = 520; // of the widget at least, of a new node
const hint = () => words("Press Run, and walk here: W A S D, arrows, mouse or gamepad. Then Stop.");
const elsewhere = () => words("A walk is running in another tab or window. A run of this one waits for its end.");
const paused = () => words("A walk of another workflow is paused: go back to its tab.");
const LOOK_MS = 1000; // from one look at the start image to the next, while nobody walks
const KEYS = ["keydown", "keyup", "keypress", "copy", "cut", "paste"];

/** The parts of the page that a node has, with their style, in a tree of their own. @param {string} html */
function fill(host, html) {
  const page = new DOMParser().parseFromString(html, "text/html"), root = host.attachShadow({ mode: "open" });
  for (const style of ["live.css", "canvas.css"]) {
    const href = new URL(`../../live/${style}`, import.meta.url);
    root.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href }));
  }
  page.querySelectorAll("[data-save], [data-command=picture], .pictured").forEach((element) => element.remove());
  const stop = page.querySelector("[data-command=leave]");
  Object.assign(stop, { textContent: words("Stop"), title: words("End the walk; the node outputs it") });
  root.append(...[".stage", ".bar"].map((part) => translate(page.querySelector(part))));
  return root;
}

/** ComfyUI hears of no key but those with control: its short cuts are letters. */
function keepKeys(host) {
  for (const type of KEYS) {
    host.addEventListener(type, (event) => { if (!event.ctrlKey && !event.metaKey) event.stopPropagation(); });
  }
  // As in widget.js: without these ComfyUI undoes the graph while a prompt is typed.
  Object.defineProperty(host, "type", { value: "textarea" });
  Object.defineProperty(host, "isContentEditable", { value: true });
}

function addressOf(running) {
  return new URL(`${urlOf(ADDRESS)}?node=${encodeURIComponent(running)}`, location.href);
}

/** Whether the id of a running node, `3` or `12:3` in a subgraph, is this node's. */
const isOf = (node, running) => String(running ?? "").split(":").at(-1) === String(node.id);

/** What the view shows of a walk that begins, or is taken up again: then what is in the line stays. */
function started(view, { steered, prompts, prompt }, again) {
  if (!again) view.bar.prompt.value = prompt;
  for (const element of view.bar.elements) element.disabled ||= !steered && element.dataset.command !== "full";
  for (const element of view.bar.querySelectorAll(".prompt, .refresh, [type=submit]")) element.hidden = !prompts;
  view.input.active = steered;
  view.stage.querySelector(".hold").hidden ||= !steered;
  if (!steered || !again) view.say(steered ? "" : words("The camera follows the recorded path."));
}

/** Has a view that nobody walks in show the start image, as the walk will begin. */
function showStart(node, view) {
  if (view.connection || !node.graph) return;
  const nodes = imageNodes(node), { width, height } = loadedPicture(node) ?? { width: 0, height: 1 };
  const { aspect, fit } = videoOf(node, nodes, width / height) ?? { aspect: width / height, fit: "cover" };
  view.picture.show(nearestPicture(nodes), aspect || 0, fit);
}

/** Whether a walk goes on that this page has not asked for. */
async function walkElsewhere() {
  const answer = await ask(`${ADDRESS}/walks`);
  return answer.ok && (await answer.json()).walks > 0;
}

let walkedIn; // the workflow of the last walk that began while this page was there: node ids are a workflow's own

/** Takes up the walk of a node that was there before, when this one has its id: the page was loaded again, or the graph
 * was, by an undo or another workflow's tab. */
async function takeUp(node, walk, say) {
  await new Promise((resolve) => { setTimeout(resolve, 500); });
  const answer = await ask(`${ADDRESS}/running?client=${encodeURIComponent(pageId())}`);
  const running = answer.ok ? (await answer.json()).find((id) => isOf(node, id)) : undefined;
  if (!running) return;
  if (!walkedIn || walkedIn === openWorkflow()) walk({ detail: running });
  else say(paused());
}

/** @param {string} html  of live/index.html */
export function addLiveView(html, node) {
  if (node.comfyClass !== NODE) return null;
  const host = Object.assign(document.createElement("div"), { className: "lbw-live", tabIndex: -1 });
  const view = new View({
    root: fill(host, html), left: (reason) => { view.say(reason || hint()); showStart(node, view); },
    started: (message, again) => started(view, message, again),
  });
  const walk = ({ detail }) => {
    // ComfyUI copies nodes by way of some in no graph.
    if (!node.graph || !isOf(node, detail) || view.connection) return;
    walkedIn = openWorkflow();
    const output = { realtime_output_format: "jpeg", output_compression: 88 };
    showStart(node, view);
    view.walk(output, addressOf(detail), textCodec());
  };
  const waits = async () => {
    const others = !view.connection && await walkElsewhere().catch(() => false);
    if (view.connection || !node.graph) return;
    if (!others && [elsewhere(), paused()].includes(view.notice)) view.say(hint());
    else if (others && view.notice !== paused()) view.say(elsewhere());
  };
  const start = ({ detail: { node: running, image, width, height } }) => {
    if (!node.graph || !isOf(node, running) || "seen" in view.stage.dataset) return;
    view.picture.show(viewUrl(image), width / height);
  };
  keepKeys(host);
  forwardToCanvas(host);
  host.addEventListener("focusout", () => view.input.letGo());
  view.say(hint());
  listen("executing", walk);
  listen(WALKS, waits);
  listen(START, start);
  const timer = setInterval(() => showStart(node, view), LOOK_MS);
  const widget = addElement(node, "view", TYPE, host, { hideOnZoom: false, getMinHeight: () => HEIGHT });
  const { onRemove } = widget;
  widget.label = words("view");
  widget.onRemove = function () {
    unlisten("executing", walk);
    unlisten(WALKS, waits);
    unlisten(START, start);
    clearInterval(timer);
    view.close();
    onRemove?.call(this);
  };
  node.setSize([Math.max(node.size[0], WIDTH), node.size[1]]);
  takeUp(node, walk, (text) => view.say(text)).then(waits).catch(() => {}); // no server: there is no walk
  return widget;
}
