// Buttons on the nodes that make model files, Toy Package and Quantize: each runs its node alone, and has every list on
// the canvas show what was made.

import { app } from "../../../../scripts/app.js";

const TOY = "LingBotWorldToyPackage", QUANTIZE = "LingBotWorldQuantize", PACK = "LingBotWorld";
const ALL_AT_ONCE = 1, ACTIVE = 0;
const FROM_PACKAGE = "from the package";
const CHOSEN = { // on loaders, when the toy is chosen
  package: "toy", high_noise_expert: FROM_PACKAGE, low_noise_expert: FROM_PACKAGE,
  model_name: "toy/lingbot_world_fast/model.safetensors", vae_name: "toy/Wan2.1_VAE.pth",
  text_encoder: "toy/models_t5_umt5-xxl-enc-bf16.pth", tokenizer: "auto",
};
const LORA = "LoraLoaderModelOnly", CLIP = "CLIPLoader", TEXT_ENCODER = "LingBotWorldLoadTextEncoder"; // two of core's
const nightLora = (name) => `night_${/low/i.test(name) ? "low" : "high"}.safetensors`;

function tell(summary, detail) {
  app.extensionManager.toast.add({ severity: "success", summary, detail, life: 6000 });
}

/** Queues a node alone, even one that sleeps in its graph. */
async function runAlone(node) {
  const { mode } = node;
  node.mode = ACTIVE;
  try {
    await app.queuePrompt(0, ALL_AT_ONCE, [String(node.id)]);
  } finally {
    node.mode = mode;
  }
}

/** Adds a button that is neither saved nor queued. */
function addButton(node, label, press) {
  node.addWidget("button", label, null, press, { serialize: false }).serialize = false;
}

/** Has the lists on the canvas show what a run of the node made, after `tellOf(its words)`. */
function refreshAfter(node, tellOf) {
  const { onExecuted } = node;
  node.onExecuted = function (output) {
    onExecuted?.call(this, output);
    tellOf(output?.text?.[0]);
    app.reloadNodeDefs();
  };
}

/** Every node of the workflow, those in subgraphs too. */
function allNodes() {
  const root = app.rootGraph ?? app.graph;
  return [root, ...(root.subgraphs?.values() ?? [])].flatMap((graph) => graph.nodes);
}

function choose(widget, value) {
  widget.value = value;
  widget.callback?.(value);
}

/** Puts our text encoder's loader in the place of core's, which reads umt5 of the official size alone. */
function replaceClip(node) {
  const { graph, pos } = node, made = window.LiteGraph.createNode(TEXT_ENCODER);
  graph.add(made);
  made.pos = [...pos];
  for (const id of [...node.outputs[0].links ?? []]) {
    const { target_id: target, target_slot: slot } = graph.getLink?.(id) ?? graph.links[id];
    made.connect(0, graph.getNodeById(target), slot);
  }
  graph.remove(node);
}

/** Puts every loader of the open workflow on the toy; on a subgraph's own fields too. */
function useToy() {
  allNodes().filter(({ comfyClass }) => comfyClass === CLIP).forEach(replaceClip);
  const ours = ({ comfyClass, subgraph }) => comfyClass?.startsWith(PACK) || subgraph;
  for (const node of allNodes()) {
    for (const widget of node.widgets ?? []) {
      if (node.comfyClass === LORA && widget.name === "lora_name") choose(widget, nightLora(widget.value));
      if (ours(node) && widget.name in CHOSEN && node.comfyClass !== QUANTIZE) choose(widget, CHOSEN[widget.name]);
    }
  }
  app.graph.setDirtyCanvas(true, true);
  tell("Toy package", "Every loader of this workflow is set to it. Its models know 160x96 and 33 frames.");
}

/** Keeps a new node of any type as it is, unless it is Toy Package. */
export function addToyButton(node) {
  if (node.comfyClass !== TOY) return;
  addButton(node, "Make the toy package", () => runAlone(node));
  addButton(node, "Use the toy", useToy);
  refreshAfter(node, (said) => tell("Toy package", said));
}

/** Keeps a new node of any type as it is, unless it is Quantize. */
export function addQuantizeButton(node) {
  if (node.comfyClass !== QUANTIZE) return;
  addButton(node, "Quantize now", () => runAlone(node));
  refreshAfter(node, () => tell("Quantize", "The 4-bit package is ready, and the loaders list it."));
}
