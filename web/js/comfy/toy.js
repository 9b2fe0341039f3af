// The button on Toy Package: makes the package, and has every list on the canvas show it.

import { app } from "../../../../scripts/app.js";

const NODE = "LingBotWorldToyPackage";
const ALL_AT_ONCE = 1;

/** Keeps a new node of any type as it is, unless it is Toy Package. */
export function addToyButton(node) {
  if (node.comfyClass !== NODE) return;
  const make = () => app.queuePrompt(0, ALL_AT_ONCE, [String(node.id)]);
  const button = node.addWidget("button", "Make the toy package", null, make, { serialize: false });
  button.serialize = false;
  const { onExecuted } = node;
  node.onExecuted = function (output) {
    onExecuted?.call(this, output);
    const [said] = output?.text ?? [];
    app.extensionManager.toast.add({ severity: "success", summary: "Toy package", detail: said, life: 6000 });
    app.refreshComboInNodes();
  };
}
