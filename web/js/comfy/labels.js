// Translated names of sockets. ComfyUI shows a socket's label before its translation, and a node's display names and
// saved workflows have English labels.

/** Remove the English labels of a node's sockets that have a translation. A label that the user chose stays. */
export function showTranslations(node) {
  const { required, optional } = node.constructor.nodeData?.input ?? {};
  for (const slot of node.inputs ?? []) {
    const english = { ...required, ...optional }[slot.name]?.[1]?.display_name;
    const translated = slot.localized_name && ![slot.name, english].includes(slot.localized_name);
    if (translated && slot.label === english) slot.label = undefined;
  }
}
