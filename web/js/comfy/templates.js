// Puts this pack's templates in the order of their numbers: ComfyUI lists them as the file system has them.

import { api } from "../../../../scripts/api.js";

/** @param {string} quoted  the pack's folder below custom_nodes, as it stands in an address */
export function orderTemplates(quoted) {
  const folder = decodeURIComponent(quoted), ask = api.getWorkflowTemplates;
  if (typeof ask !== "function") return; // a front-end that asks in another way keeps its own order
  api.getWorkflowTemplates = async function (...options) {
    const templates = await ask.apply(this, options);
    templates?.[folder]?.sort?.();
    return templates;
  };
}
