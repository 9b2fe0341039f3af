// Which workflow a run belongs to, and what its nodes were like when it was queued. Ids of nodes are a workflow's own:
// by the time that a run tells something of node 3, the canvas may show another workflow's.

import { ask as askServer, listen, rootGraph } from "./frontend.js";

const ADDRESS = "/lingbot_world/workflow_of"; // of host/prompt/queue.py
const MOST = 20; // runs, or states of a node, that are remembered
const asked = new Map(); // by a run's id: a promise of its workflow's id, null where that is not known
let running = ""; // id of the run that goes on

/** Drops what came first into a Map or a Set that has become large. */
function keepSmall(collection) {
  if (collection.size > MOST) collection.delete(collection.keys().next().value);
}

async function ask(run) {
  const answer = await askServer(`${ADDRESS}?${new URLSearchParams({ prompt: run })}`);
  return answer.ok ? answer.json() : null;
}

/** The id of a run's workflow; null where it is not known. */
export function workflowOf(run) {
  if (!asked.has(run)) asked.set(run, ask(run).catch(() => null));
  keepSmall(asked);
  return asked.get(run);
}

/** The id of the workflow on the canvas. */
export const shownWorkflow = () => rootGraph().id;

/** Remembers from now on which run goes on, and asks at once what it belongs to. */
export const watchRuns = () => listen("execution_start", ({ detail }) => {
  running = detail.prompt_id;
  workflowOf(running);
});

/**
 * @param {any} widget  of the node
 * @param {() => string | null} state  what the node's output follows from, at the moment
 * @returns {() => Promise<boolean>} whether what the run that goes on has made is of this node, as it is now: the run
 *   is of the workflow on the canvas, and nothing has changed since it was queued
 */
export function watchQueued(widget, state) {
  const queued = new Set();
  widget.beforeQueued = () => { queued.add(state()); keepSmall(queued); };
  return async () => {
    const workflow = running && await workflowOf(running);
    return (!workflow || workflow === shownWorkflow()) && (queued.size === 0 || queued.has(state()));
  };
}
