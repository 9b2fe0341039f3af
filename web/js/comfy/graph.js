// Walks up the links of ComfyUI's graph, through the borders of subgraphs.

import { allGraphs, allNodes, linkOf } from "./frontend.js";

const SUBGRAPH_INPUTS = -10; // LiteGraph's id for a subgraph's inputs, as the origin of a link

/** Where input `slot` of a subgraph comes from: the first connected node of all that stand for the subgraph. */
function sourceOutside(subgraph, slot) {
  for (const graph of allGraphs()) {
    for (const node of graph.nodes) {
      const source = node.subgraph === subgraph ? sourceOfLink(graph, node.inputs[slot]?.link) : undefined;
      if (source) return source;
    }
  }
  return undefined;
}

/** What stands in the field of a subgraph's node that feeds a link inside; undefined where none does, or where several
 * nodes stand for the subgraph. */
export function promotedValue(graph, linkId) {
  const link = linkOf(graph, linkId);
  if (Number(link?.origin_id) !== SUBGRAPH_INPUTS) return undefined;
  const nodes = allNodes().filter((node) => node.subgraph === graph);
  const name = nodes.length === 1 ? nodes[0].inputs[link.origin_slot]?.name : undefined;
  return nodes[0]?.widgets?.find((widget) => widget.name === name)?.value;
}

/**
 * The node and the output that feed a link; undefined where nothing does, or where the node of the link is in no graph:
 * ComfyUI makes such nodes, links and all, to copy others into a subgraph.
 * @returns {{node: any, slot: number} | undefined}
 */
export function sourceOfLink(graph, linkId) {
  const link = linkId == null ? undefined : linkOf(graph, linkId);
  if (!link) return undefined;
  if (Number(link.origin_id) === SUBGRAPH_INPUTS) return sourceOutside(graph, link.origin_slot);
  const node = graph.getNodeById(link.origin_id);
  const { subgraph } = node ?? {};
  if (subgraph) return sourceOfLink(subgraph, subgraph.outputs[link.origin_slot]?.linkIds[0]);
  return node ? { node, slot: link.origin_slot } : undefined;
}

/** The node that feeds the first connected input of one of these types. @param {string[]} types */
export function nodeBefore(node, types) {
  const input = node.inputs?.find(({ type, link }) => types.includes(type) && link != null);
  return input && sourceOfLink(node.graph, input.link)?.node;
}
