// What the engine says of a run, on the node that ran, until it says something else. ComfyUI's own text of a running
// node would not do: front-end 1.58 takes it away when the run ends, 1.49 never. What is said of a workflow that is not
// on the canvas is shown when it comes back there.

import { addElement, listen, removeWidget, rootGraph } from "./frontend.js";
import { forwardToCanvas } from "./canvas_events.js";
import { shownWorkflow, workflowOf } from "./runs.js";

const EVENT = "lingbot_world.text"; // of host/prompt/notice.py
const NAME = "LingBot-World says", TYPE = "LINGBOT_TEXT"; // a name that no field of any node has
const HEIGHT = 58, MOST_HEIGHT = 200; // what is longer is scrolled
const said = new Map(); // by the id of a workflow: the texts of its nodes, by their ids
let taken = Promise.resolve(); // what was said so far
let shown = ""; // id of the workflow whose texts were shown last

/** The node that runs under an id: `3`, or `12:3` in a subgraph. API files give nodes of no subgraph such ids too. */
function runningNode(id) {
  const root = rootGraph();
  const inside = () => id.split(":").reduce((node, part) => node?.subgraph?.getNodeById(part), { subgraph: root });
  return root.getNodeById(id) ?? inside();
}

function addText(node) {
  const element = document.createElement("div");
  element.className = "lbw-said lbw-scroll";
  Object.assign(element.style, {
    fontSize: "12px", lineHeight: "18px", color: "var(--input-text, #ddd)", whiteSpace: "pre-wrap",
    overflow: "hidden auto", overflowWrap: "anywhere", userSelect: "text", maxHeight: `${MOST_HEIGHT}px`,
  });
  forwardToCanvas(element);
  const looks = { hideOnZoom: false, hideInPanel: true, getMinHeight: () => HEIGHT };
  return addElement(node, NAME, TYPE, element, looks);
}

/** Shows a text on a node, in place of what it showed before; an empty one takes that away. */
function show(id, text) {
  const node = runningNode(id);
  if (!node) return; // it was deleted meanwhile
  const before = node.widgets?.find(({ name }) => name === NAME);
  if (text) (before ?? addText(node)).element.textContent = text;
  else if (before) removeWidget(node, before);
  node.setDirtyCanvas(true, true);
}

/** Takes what is said in the order in which it was: an earlier run's words must not come after a later one's. */
function take({ detail }) {
  taken = taken.then(() => put(detail));
}

async function put({ prompt_id: run, node, text }) {
  const workflow = await workflowOf(run) ?? shownWorkflow(), texts = said.get(workflow) ?? new Map();
  said.set(workflow, texts.set(String(node), text));
  if (workflow !== shownWorkflow()) return;
  shown = workflow;
  show(String(node), text);
}

/** Shows what was said of a workflow that comes back to the canvas; not of one that is loaded again, by an undo. */
export function showTextsAgain() {
  const workflow = shownWorkflow();
  if (workflow !== shown) said.get(workflow)?.forEach((text, id) => show(id, text));
  shown = workflow;
}

/** Shows from now on what runs say. */
export const showTexts = () => listen(EVENT, take);
