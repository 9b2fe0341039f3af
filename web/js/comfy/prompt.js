// Writes a node, and what is before it, as ComfyUI's queue takes them, without asking for anything to be run.

import { promotedValue, sourceOfLink } from "./graph.js";

const MOST_NODES = 60;
const ACTIVE = 0; // LiteGraph's mode of a node that is neither muted nor bypassed
const THROUGH = "Reroute", HOLDS_A_VALUE = "PrimitiveNode"; // nodes of the canvas alone

/** @typedef {Record<string, {class_type: string, inputs: Record<string, unknown>}>} Prompt */

/** The names of a node's own fields; what the canvas adds to them, such as buttons, is not among them. */
function fieldNames(node) {
  const { required = {}, optional = {} } = node.constructor.nodeData?.input ?? {};
  return new Set([...Object.keys(required), ...Object.keys(optional)]);
}

/** Adds a node to a prompt under the id that it returns; null where it cannot be known what the node makes. */
function add(node, prompt, ids) {
  if (ids.has(node)) return ids.get(node);
  if (node.mode !== ACTIVE || ids.size >= MOST_NODES) return null;
  const id = String(ids.size + 1), inputs = {}, names = fieldNames(node);
  ids.set(node, id);
  for (const { name, value } of node.widgets ?? []) if (names.has(name)) inputs[name] = value;
  for (const input of node.inputs ?? []) {
    if (input.link == null || input.type === "IMAGE") continue;
    const value = follow(node.graph, input.link, prompt, ids);
    if (value === undefined) return null;
    inputs[input.name] = value;
  }
  prompt[id] = { class_type: node.type, inputs };
  return id;
}

/** What a link brings, as a prompt says it; undefined where that is not known. */
function follow(graph, link, prompt, ids) {
  const source = sourceOfLink(graph, link);
  if (!source) return promotedValue(graph, link);
  if (source.node.type === THROUGH) return follow(source.node.graph, source.node.inputs[0].link, prompt, ids);
  if (source.node.type === HOLDS_A_VALUE) return source.node.widgets?.[0]?.value;
  const id = add(source.node, prompt, ids);
  return id === null ? undefined : [id, source.slot];
}

/**
 * A node with what is before it, pictures left out.
 * @returns {{prompt: Prompt, node: string} | null} null where a part of it is not known
 */
export function promptOf(node) {
  const prompt = {}, id = add(node, prompt, new Map());
  return id === null ? null : { prompt, node: id };
}
